#include "operators/kernel_bases.h"

#include <algorithm>

#include "blocks/gpu/walk_plan.h"

namespace graphopt {

std::string refuse_mixed_floats(const Node& node, const std::vector<size_t>& host_inputs) {
  ElementType type = ElementType::kUndefined;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.has_input(i) || std::count(host_inputs.begin(), host_inputs.end(), i) > 0) continue;
    const ElementType given = node.inputs[i].type;
    if (!is_float(given)) return no_kernel(given);
    if (type != ElementType::kUndefined && given != type) return "float and float16 inputs";
    type = given;
  }
  return "";
}

std::string no_kernel(ElementType type) { return std::string("no kernel for ") + element_type_name(type); }

std::string refuse_unless_last(const Node& node, int64_t axis) {
  if (axis == -1) return "";
  const auto& x = node.inputs.front().shape;
  if (!x) return "the rank is not known";
  return axis == static_cast<int64_t>(x->rank()) - 1 ? "" : "only the last axis";
}

size_t axis_of(int64_t axis, size_t rank) {
  const int64_t n = static_cast<int64_t>(rank), a = axis < 0 ? axis + n : axis;
  if (a < 0 || a >= n) throw Error("axis " + std::to_string(axis) + " is out of range");
  return static_cast<size_t>(a);
}

void require_sizes(size_t count, const std::vector<int64_t>& numbers, int64_t least) {
  if (!numbers.empty() && numbers.size() != count) {
    throw Error(std::to_string(numbers.size()) + " numbers where there should be " + std::to_string(count));
  }
  for (const int64_t n : numbers) {
    if (n < least || n > INT32_MAX) throw Error(std::to_string(n) + " is out of range");
  }
}

std::optional<std::vector<int64_t>> find_sizes(const Attributes& a, const char* name, size_t count,
                                               int64_t least) {
  std::optional<std::vector<int64_t>> numbers = a.find_ints(name);
  const auto fits = [least](int64_t n) { return n >= least && n <= INT32_MAX; };
  if (!numbers || numbers->size() != count || !std::all_of(numbers->begin(), numbers->end(), fits)) {
    return std::nullopt;
  }
  return numbers;
}

std::vector<int64_t> get_sizes(const Attributes& a, const char* name, size_t count, int64_t least) {
  std::vector<int64_t> numbers = a.get_ints(name);
  if (find_sizes(a, name, count, least)) return numbers;
  throw Error(std::string("attribute '") + name + "' must be " + std::to_string(count) + " numbers from " +
              std::to_string(least) + " to " + std::to_string(INT32_MAX));
}

bool is_half(const Tensor& tensor) { return tensor.type == ElementType::kHalf; }

Ref set_output(Call& call, size_t i, const Shape& shape, ElementType type) {
  call.set_output(i, shape, type, Place::kDevice);
  return Ref::output(i);
}

Ref set_output(Call& call, size_t i, const Shape& shape) {
  return set_output(call, i, shape, call.input(0).type);
}

}  // namespace graphopt
