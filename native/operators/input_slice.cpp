#include "operators/input_slice.h"

#include "operators/kernel_bases.h"

namespace graphopt {

std::optional<InputSlice> InputSlice::read(const Attributes& node, size_t input) {
  const std::optional<std::vector<int64_t>> values = node.find_ints(kAttributes[input]);
  if (!values) return std::nullopt;
  throw_if(values->size() < 3, "attribute '", kAttributes[input], "' needs an axis, an index and other axes");
  InputSlice slice{(*values)[0], (*values)[1], {values->begin() + 2, values->end()}};
  std::vector<int64_t> all = slice.axes;
  all.push_back(slice.axis);
  throw_if(!is_permutation(all), "attribute '", kAttributes[input], "' must contain each axis once");
  return slice;
}

StridedShape strided(const Shape& tensor, const std::optional<InputSlice>& slice) {
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
