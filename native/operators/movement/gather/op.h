// Gather, GatherElements and GatherND on a GPU.
#pragma once

#include "blocks/gpu/walk_plan.h"
#include "operators/tensor.h"

namespace graphopt {

// In a region, a Gather node with one constant index also has the index as this attribute.
constexpr const char* kConstantIndex = "constant_index";

// Returns the output shape of Gather with `indices` along an axis of x.
Shape gathered(const Shape& x, const Shape& indices, size_t axis);

}  // namespace graphopt

namespace graphopt::gpu {

// x [outer, size, inner], y [outer, indices, inner], elements of 1, 2, 4 or 8 bytes.
struct GatherProblem {
  int64_t outer = 1, size = 1, inner = 1, indices = 1;
  int64_t bytes = 4;
  bool narrow = false;  // indices are int32_t
};

// Inputs x, indices; output y. Throws std::invalid_argument if a size is 2^31 or more.
Plan gather_plan(const GatherProblem& p, bool aligned);

// y[i] = x[i'], where i' is i with index[i] as its position along `axis`; elements of 1, 2, 4 or 8 bytes.
struct GatherElementsProblem {
  Shape x, index;
  size_t axis = 0;
  int64_t bytes = 4;
  bool narrow = false;
};
// Inputs x, indices; output y of the shape of the indices. Throws std::invalid_argument if the indices do not fit into
// x, or if a size is too large.
Plan gather_elements_plan(const GatherElementsProblem& p);

// x [batch, sizes..., inner], indices [batch, rows, tuple]. A tuple has one index for each of the sizes.
struct GatherNDProblem {
  int64_t batch = 1, rows = 1, inner = 1;
  std::vector<int64_t> sizes;
  int64_t bytes = 4;
};
// Inputs x, indices; output y [batch, rows, inner]. Throws std::invalid_argument if a tuple has more than kMaxAxes
// indices, or if a size is 2^31 or more.
Plan gather_nd_plan(const GatherNDProblem& p, bool aligned);

}  // namespace graphopt::gpu
