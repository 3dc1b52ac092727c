#include "operators/input_slice.h"

#include "operators/kernel_bases.h"

namespace graphopt {

std::optional<InputSlice> InputSlice::read(const Attributes& node, size_t input) {
  const std::optional<std::vector<int64_t>> values = node.find_ints(kAttributes[input]);
  if (!values) return std::nullopt;
  const size_t rank = (values->size() - 1) / 2;  // of the tensor
  throw_if(rank < 2 || values->size() != 2 * rank + 1, "attribute '", kAttributes[input],
           "' must contain an axis, an index, the other axes and a shape");
  const auto shape = values->end() - static_cast<ptrdiff_t>(rank);
  InputSlice slice{(*values)[0], (*values)[1], {values->begin() + 2, shape}, {shape, values->end()}};
  std::vector<int64_t> all = slice.axes;
  all.push_back(slice.axis);
  throw_if(!is_permutation(all), "attribute '", kAttributes[input], "' must contain each axis once");
  return slice;
}

namespace {

// Returns the shape of a tensor after a Reshape.
Shape reshaped(const Shape& tensor, const std::vector<int64_t>& target) {
  Shape result(target.size());
  int64_t known = 1;
  for (size_t i = 0; i < target.size(); ++i) {
    throw_if(target[i] == 0 && i >= tensor.rank(), tensor, " has no axis ", i);
    result[i] = target[i] == 0 ? tensor[i] : target[i];
    if (result[i] >= 0) known *= result[i];
  }
  for (size_t i = 0; i < target.size(); ++i) {
    if (result[i] < 0) result[i] = known == 0 ? 0 : tensor.elements() / known;
  }
  throw_if(result.elements() != tensor.elements(), "a tensor ", tensor, " cannot be reshaped to ", result);
  return result;
}

}  // namespace

StridedShape strided(const Shape& given, const std::optional<InputSlice>& slice) {
  const Shape tensor = slice ? reshaped(given, slice->shape) : given;
  const size_t rank = tensor.rank();
  Shape strides(rank);
  for (size_t i = 0; i < rank; ++i) strides[i] = tensor.elements(i + 1);
  if (!slice) return {tensor, strides, 0};
  throw_if(rank != slice->axes.size() + 1, "a tensor ", tensor, " has no slice of rank ", slice->axes.size());
  const auto axis = static_cast<size_t>(slice->axis);
  const int64_t size = tensor[axis], index = slice->index < 0 ? slice->index + size : slice->index;
  throw_if(index < 0 || index >= size, "axis ", slice->axis, " of ", tensor, " has no index ", slice->index);
  StridedShape result{Shape(rank - 1), Shape(rank - 1), index * strides[axis]};
  for (size_t i = 0; i + 1 < rank; ++i) {
    result.shape[i] = tensor[static_cast<size_t>(slice->axes[i])];
    result.strides[i] = strides[static_cast<size_t>(slice->axes[i])];
  }
  return result;
}

}  // namespace graphopt
