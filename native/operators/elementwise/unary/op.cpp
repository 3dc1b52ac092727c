// Sin, Floor, Sign, ...
#include "operators/elementwise/unary/op.h"

#include "operators/elementwise/elementwise/op.h"
#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

class UnaryFunction final : public gpu::DeviceKernel {
 public:
  UnaryFunction(const Node& node, gpu::Device& device, hip::UnaryOp op, float alpha)
      : DeviceKernel(device), op_(op), alpha_(node.find_float("alpha").value_or(alpha)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::unary_plan(op_, alpha_, x.shape.elements(), is_half(x), call.aligned()),
                   {Ref::input(0)}, {y});
  }

  hip::UnaryOp op_;
  float alpha_;
};

// A whole number is cut to what lies between -1 and 1.
class Sign final : public gpu::DeviceKernel {
 public:
  Sign(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const Ref y = set_output(call, 0, x.shape);
    gpu::WholeProblem p;
    p.op = gpu::WholeOp::kClip;
    p.is_signed = is_signed(x.type);
    p.bytes = bytes_of(x.type);
    p.low = p.is_signed ? -1 : 0;
    p.high = 1;
    p.a = p.y = x.shape;
    program.launch(is_float(x.type) ? gpu::unary_plan(hip::UnaryOp::kSign, 0, x.shape.elements(), is_half(x),
                                                      call.aligned())
                                    : gpu::whole_plan(p, call.aligned()),
                   {Ref::input(0)}, {y});
  }
};

std::string refuse_sign(const Node& node) { return is_whole(node.type()) ? "" : refuse_mixed_floats(node); }

}  // namespace

void add_unary(Kernels& kernels) {
  const auto floats = [](const Node& node) { return refuse_mixed_floats(node); };
  const auto unary = [&](const char* name, int first, int last, hip::UnaryOp op) {
    kernels.add_onnx<UnaryFunction>(name, first, last, op, 1.0f).refused(floats).reuses(Reuse::kInplace);
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
  kernels.add_onnx<Sign>("Sign", 9, 13).refused(refuse_sign).reuses(Reuse::kInplace).takes_rare_types();
  kernels.add_microsoft<UnaryFunction>("QuickGelu", hip::UnaryOp::kQuickGelu, 1.702f)
      .refused(floats)
      .reuses(Reuse::kInplace);
}

}  // namespace graphopt
