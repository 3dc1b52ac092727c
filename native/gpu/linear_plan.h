// How Linear[Add][act] runs on a GPU: a product, then hip/linear.hip.
#pragma once

#include "gpu/gemm_plan.h"
#include "gpu/launch.h"
#include "ops/linear.h"

namespace graphopt::gpu {

GemmProblem linear_product(const LinearProblem& p);

// Inputs X, W, b, R if any; output Y. `with_product`: X W is a part of the plan; else Y holds it already.
// `half`: float16, else float. `aligned`: all pointers are multiples of 16. Throws std::invalid_argument.
Plan linear_plan(const LinearProblem& p, bool half, bool aligned, bool with_product);

}  // namespace graphopt::gpu
