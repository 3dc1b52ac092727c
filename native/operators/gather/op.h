// Gather on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

// x [outer, size, inner], y [outer, indices, inner], elements of `bytes` (2, 4 or 8) bytes.
struct GatherProblem {
  int64_t outer = 1, size = 1, inner = 1, indices = 1;
  int64_t bytes = 4;
  bool narrow = false;  // indices are int32_t
};

// Inputs x, indices; output y. Throws std::invalid_argument.
Plan gather_plan(const GatherProblem& p, bool aligned);

}  // namespace graphopt::gpu
