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
    if (type != ElementType::kUndefined && given != type) return "the inputs have types float and float16";
    type = given;
  }
  return "";
}

std::string no_kernel(ElementType type) { return std::string("no kernel for ") + element_type_name(type); }

bool is_permutation(const std::vector<int64_t>& perm) {
  for (size_t axis = 0; axis < perm.size(); ++axis) {
    if (std::count(perm.begin(), perm.end(), static_cast<int64_t>(axis)) != 1) return false;
  }
  return true;
}

size_t axis_of(int64_t axis, size_t rank) {
  const int64_t n = static_cast<int64_t>(rank), a = axis < 0 ? axis + n : axis;
  throw_if(a < 0 || a >= n, "axis ", axis, " is out of range");
  return static_cast<size_t>(a);
}

void require_sizes(size_t count, const std::vector<int64_t>& values, int64_t least) {
  throw_if(!values.empty() && values.size() != count, "there are ", values.size(), " values, expected ",
           count);
  for (const int64_t n : values) {
    throw_if(n < least || n > INT32_MAX, n, " is out of range");
  }
}

std::optional<std::vector<int64_t>> find_sizes(const Attributes& a, const char* name, size_t count,
                                               int64_t least) {
  std::optional<std::vector<int64_t>> values = a.find_ints(name);
  const auto fits = [least](int64_t n) { return n >= least && n <= INT32_MAX; };
  if (!values || values->size() != count || !std::all_of(values->begin(), values->end(), fits)) {
    return std::nullopt;
  }
  return values;
}

std::vector<int64_t> get_sizes(const Attributes& a, const char* name, size_t count, int64_t least) {
  std::vector<int64_t> values = a.get_ints(name);
  if (find_sizes(a, name, count, least)) return values;
  throw Error("attribute '", name, "' must be ", count, " integers from ", least, " to ", INT32_MAX);
}

bool is_half(const Tensor& tensor) { return tensor.type == ElementType::kHalf; }

std::tuple<int64_t, int64_t, int64_t> split_at(const Shape& x, size_t axis) {
  return {x.elements(0, axis), x[axis], x.elements(axis + 1)};
}

Ref input_or_none(const Call& call, size_t i) { return call.has_input(i) ? Ref::input(i) : Ref(); }

Ref set_output(Call& call, size_t i, const Shape& shape, ElementType type) {
  call.set_output(i, shape, type, Place::kDevice);
  return Ref::output(i);
}

Ref set_output(Call& call, size_t i, const Shape& shape) {
  return set_output(call, i, shape, call.input(0).type);
}

}  // namespace graphopt
