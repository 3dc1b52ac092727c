#include "operators/movement/shape/arithmetic.h"

namespace graphopt {
namespace {

bool is_known(ElementType type) {
  return type == ElementType::kInt64 || type == ElementType::kInt32 || type == ElementType::kFloat ||
         type == ElementType::kBool;
}

}  // namespace

std::string refuse_unless_arithmetic(const Node& node) {
  for (const auto* values : {&node.inputs, &node.outputs}) {
    for (const Value& value : *values) {
      if (value.present && !is_known(value.type)) return no_kernel(value.type);
    }
  }
  return "";
}

void set_host_output(Call& call, const Shape& shape, ElementType type) {
  call.set_output(0, shape, type, Place::kHost);
}

}  // namespace graphopt
