// Sin, Floor, Sign, ...
#include "operators/elementwise/unary/op.h"

#include "operators/elementwise/elementwise/op.h"
#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

Planner plan_unary_function(const Node& node, hip::UnaryOp op, float absent_alpha) {
  const float alpha = node.get_float("alpha", absent_alpha);
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::unary_plan(op, alpha, x.shape.elements(), is_half(x), call.aligned()),
                   {Ref::input(0)}, {y});
  };
}

// The sign of an integer is the integer clipped to [-1, 1].
void plan_sign(Call& call, Program& program) {
  const Tensor& x = call.input(0);
  if (!is_float(x.type)) {
    return plan_integer_unary(call, program, gpu::IntegerOp::kClip, is_signed(x.type) ? -1 : 0, 1);
  }
  const Ref y = set_output(call, 0, x.shape);
  program.launch(gpu::unary_plan(hip::UnaryOp::kSign, 0, x.shape.elements(), is_half(x), call.aligned()),
                 {Ref::input(0)}, {y});
}

std::string refuse_sign(const Node& node) { return is_integer(node.type()) ? "" : refuse_mixed_floats(node); }

}  // namespace

void add_unary(Kernels& kernels) {
  const auto floats = [](const Node& node) { return refuse_mixed_floats(node); };
  const auto unary = [&](const char* name, int first, int last, hip::UnaryOp op) {
    kernels.add_onnx(name, first, last, plan_unary_function, op, 1.0f)
        .refused(floats)
        .reuses(Reuse::kInplace);
  };
  unary("Sin", 7, 22, hip::UnaryOp::kSin);
  unary("Cos", 7, 22, hip::UnaryOp::kCos);
  unary("Tan", 7, 22, hip::UnaryOp::kTan);
  unary("Atan", 7, 22, hip::UnaryOp::kAtan);
  unary("Ceil", 6, 13, hip::UnaryOp::kCeil);
  unary("Floor", 6, 13, hip::UnaryOp::kFloor);
  unary("Round", 11, 22, hip::UnaryOp::kRound);
  unary("Softsign", 1, 22, hip::UnaryOp::kSoftsign);
  unary("ThresholdedRelu", 10, 22, hip::UnaryOp::kThresholdedRelu);
  kernels.add_onnx("Sign", 9, 13, plan_sign)
      .refused(refuse_sign)
      .reuses(Reuse::kInplace)
      .accepts_all_numbers();
  kernels.add_microsoft("QuickGelu", plan_unary_function, hip::UnaryOp::kQuickGelu, 1.702f)
      .refused(floats)
      .reuses(Reuse::kInplace);
}

}  // namespace graphopt
