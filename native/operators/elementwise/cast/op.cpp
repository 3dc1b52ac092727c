// Cast.
#include "operators/elementwise/cast/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

class Cast final : public gpu::DeviceKernel {
 public:
  Cast(const Node& node, gpu::Device& device)
      : DeviceKernel(device), to_(static_cast<ElementType>(node.find_int("to").value_or(0))) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const Ref y = set_output(call, 0, x.shape, to_);
    program.launch(gpu::cast_plan(x.shape.elements(), x.type, to_, call.aligned()), {Ref::input(0)}, {y});
  }

  ElementType to_;
};

std::string refuse_cast(const Node& node) {
  const auto known = [](ElementType type) { return bytes_of(type) > 0 && type != ElementType::kBfloat16; };
  const auto to = static_cast<ElementType>(node.find_int("to").value_or(0));
  return known(node.inputs.front().type) && known(to) ? "" : "a type not known";
}

}  // namespace

void add_cast(Kernels& kernels) {
  kernels.add_onnx<Cast>("Cast", 6, 28).refused(refuse_cast).takes_rare_types();
}

}  // namespace graphopt
