// An input of a node that is a slice of a tensor: one index of an axis, with the other axes in any order. Its kernel
// reads the slice in the tensor itself. Example: Q in the result [B, S, 3 H D] = [B, S, 3, H, D] of one layer for Q, K
// and V.
#pragma once

#include <optional>
#include <vector>

#include "operators/kernel.h"

namespace graphopt {

struct InputSlice {
  static constexpr size_t kInputs = 3;  // the first inputs of a node can be slices
  // Attribute of a node for each input: the members axis, index, axes and shape. Only the provider writes it
  // (runtime/provider/input_slices.h).
  static constexpr const char* kAttributes[kInputs] = {"slice_of_input_0", "slice_of_input_1",
                                                       "slice_of_input_2"};

  int64_t axis = 0, index = 0;  // an index below 0 counts from the end
  std::vector<int64_t> axes;    // for each axis of the slice, its axis in the tensor
  std::vector<int64_t>
      shape;  // the tensor's shape before slicing, as the input of a Reshape (-1: the rest, 0: its own)

  // Returns nothing if the input is an entire tensor. Throws Error if the attribute is not valid.
  static std::optional<InputSlice> read(const Attributes& node, size_t input);
};

// An input in the memory of a tensor.
struct StridedShape {
  Shape shape, strides;  // in elements
  int64_t offset = 0;    // the first element
};
// `tensor`: the shape of the tensor that a node reads. Throws Error if it has no such slice.
StridedShape strided(const Shape& tensor, const std::optional<InputSlice>& slice);

}  // namespace graphopt
