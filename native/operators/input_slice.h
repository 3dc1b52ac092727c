// A node input that is a slice of a tensor: one index of one axis, with the other axes in any order. The node's kernel
// reads the slice from the tensor without a copy. Example: one GEMM computes Q, K and V as [B, S, 3 H D], a Reshape
// makes this [B, S, 3, H, D], and Q is index 0 of axis 2.
#pragma once

#include <optional>
#include <vector>

#include "operators/kernel.h"

namespace graphopt {

struct InputSlice {
  static constexpr size_t kInputs = 3;  // only inputs 0, 1 and 2 of a node can be slices
  // Names of the node's attributes, one for each input. Their values are axis, index, axes and shape. Only the provider
  // writes them (runtime/provider/input_slices.h).
  static constexpr const char* kAttributes[kInputs] = {"slice_of_input_0", "slice_of_input_1",
                                                       "slice_of_input_2"};

  int64_t axis = 0, index = 0;  // an index below 0 counts from the end
  std::vector<int64_t> axes;    // for each axis of the slice, its axis in the tensor
  // The tensor is reshaped to this before slicing, as by Reshape: -1 is inferred, 0 keeps the dim.
  std::vector<int64_t> shape;

  // Returns nothing if the input is an entire tensor. Throws Error if the attribute is not valid.
  static std::optional<InputSlice> read(const Attributes& node, size_t input);
};

// A strided view of a tensor. Strides and offset are in elements.
struct StridedShape {
  Shape shape, strides;
  int64_t offset = 0;  // of the first element
};
// Returns the view of the slice, or of the entire tensor if there is no slice. `tensor` is the shape of the tensor.
// Throws Error if it has no such slice.
StridedShape strided(const Shape& tensor, const std::optional<InputSlice>& slice);

}  // namespace graphopt
