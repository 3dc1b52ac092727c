// TopK, ArgMax and ArgMin on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/reduction/top_k/args.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

using hip::Ordered;

// x [outer, R, inner], y and which [outer, K, inner], sorted; of equal elements the first comes first, NaN
// counts as the largest.
struct TopKProblem {
  int64_t outer = 1, R = 1, inner = 1, K = 1;
  Ordered order = Ordered::kFloat;
  bool smallest = false;
};

// Outputs y and their indices in R (int64). Throws std::invalid_argument.
Plan top_k_plan(const TopKProblem& p);

// As TopKProblem's, with y [outer, inner]: the index of the largest or smallest of R, which must not be 0.
// NaN comes before both.
struct ArgProblem {
  int64_t outer = 1, R = 1, inner = 1;
  Ordered order = Ordered::kFloat;
  bool smallest = false, last = false;  // last: of equal ones the last
};

// Throws std::invalid_argument.
Plan arg_plan(const ArgProblem& p);

}  // namespace graphopt::gpu
