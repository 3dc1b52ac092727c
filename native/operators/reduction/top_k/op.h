// TopK, ArgMax and ArgMin on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/reduction/top_k/args.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

using hip::Ordered;

// x [outer, R, inner]; sorted y and indices [outer, K, inner]. Equal elements keep their order. NaN is the largest.
struct TopKProblem {
  int64_t outer = 1, R = 1, inner = 1, K = 1;
  Ordered order = Ordered::kFloat;
  bool smallest = false;
};

// Outputs y and the indices in R of its elements (int64). Throws std::invalid_argument if a size is too large.
Plan top_k_plan(const TopKProblem& p);

// x [outer, R, inner], y [outer, inner]: the index of the largest or smallest of R elements, R > 0. In both cases, NaN
// is selected before all other elements.
struct ArgProblem {
  int64_t outer = 1, R = 1, inner = 1;
  Ordered order = Ordered::kFloat;
  bool smallest = false, last = false;  // last: selects the last of equal elements
};

// Throws std::invalid_argument if a size does not fit in 31 bits.
Plan arg_plan(const ArgProblem& p);

}  // namespace graphopt::gpu
