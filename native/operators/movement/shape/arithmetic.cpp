#include "operators/movement/shape/arithmetic.h"

namespace graphopt {
namespace {

bool is_supported(ElementType type) {
  return type == ElementType::kInt64 || type == ElementType::kInt32 || type == ElementType::kFloat ||
         type == ElementType::kBool;
}

}  // namespace

std::string refuse_unless_arithmetic(const Node& node) {
  for (const auto* values : {&node.inputs, &node.outputs}) {
    for (const Value& value : *values) {
      if (value.present && !is_supported(value.type)) return no_kernel(value.type);
    }
  }
  return "";
}

void HostKernel::plan(Call& call) const {
  const HostValue y = function_(call);
  call.set_output(0, y.shape, y.type, Place::kHost);
}

bool HostKernel::run(Call& call) const {
  function_(call).write(call.outputs[0]);
  return true;
}

}  // namespace graphopt
