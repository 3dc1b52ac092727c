// Sin, Floor, Sign, ...
#include "operators/unary/op.h"

#include "operators/room.h"

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

}  // namespace

void add_unary(Kernels& kernels) {
  const auto floats = [](const Node& node) { return refuse_mixed_floats(node); };
  const auto unary = [&](const char* name, int first, int last, hip::UnaryOp op) {
    kernels.add_onnx<UnaryFunction>(name, first, last, op, 1.0f).refused(floats).reuses(Reuse::kInplace);
  };
  unary("Sin", 7, 22, hip::UnaryOp::kSin);
  unary("Cos", 7, 22, hip::UnaryOp::kCos);
  unary("Tan", 7, 22, hip::UnaryOp::kTan);
  unary("Sign", 9, 13, hip::UnaryOp::kSign);
  unary("Ceil", 6, 13, hip::UnaryOp::kCeil);
  unary("Floor", 6, 13, hip::UnaryOp::kFloor);
  unary("Round", 11, 22, hip::UnaryOp::kRound);
  unary("Softsign", 1, 22, hip::UnaryOp::kSoftsign);
  unary("ThresholdedRelu", 10, 22, hip::UnaryOp::kThresholdedRelu);
  kernels.add_microsoft<UnaryFunction>("QuickGelu", hip::UnaryOp::kQuickGelu, 1.702f)
      .refused(floats)
      .reuses(Reuse::kInplace);
}

}  // namespace graphopt
