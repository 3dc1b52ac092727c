// CumSum on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

// x and y [outer, size, inner], summed along `size`.
struct CumSumProblem {
  int64_t outer = 1, size = 1, inner = 1;
  bool reverse = false, exclusive = false;
  ElementType type = ElementType::kFloat;
};

// Input x, output y. Throws std::invalid_argument if the type is not supported or x has 2^31 elements or more.
Plan cumsum_plan(const CumSumProblem& p, const DeviceFacts& device);

}  // namespace graphopt::gpu
