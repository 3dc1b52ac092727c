// Cast.
#include "operators/elementwise/cast/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

Planner plan_cast(const Node& node) {
  const ElementType to = static_cast<ElementType>(node.get_int("to", 0));
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const Ref y = set_output(call, 0, x.shape, to);
    program.launch(gpu::cast_plan(x.shape.elements(), x.type, to, call.aligned()), {Ref::input(0)}, {y});
  };
}

std::string refuse_cast(const Node& node) {
  const auto known = [](ElementType type) {
    return bytes_of(type) > 0 && type != ElementType::kBfloat16 && type != ElementType::kFloat8E4M3Fn;
  };
  const auto to = static_cast<ElementType>(node.get_int("to", 0));
  return known(node.inputs.front().type) && known(to) ? "" : "no kernel for one of the types";
}

}  // namespace

void add_cast(Kernels& kernels) {
  kernels.add_onnx("Cast", 6, 28, plan_cast).refused(refuse_cast).accepts_all_numbers();
}

}  // namespace graphopt
