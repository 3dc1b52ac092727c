// How Linear[Add][act] runs on a GPU: as one product (operators/matmul/kernel.hip), or as the vendor's
// product and then operators/linear/kernel.hip.
#pragma once

#include "device/launch.h"
#include "operators/linear/op.h"
#include "operators/matmul/plan.h"

namespace graphopt::gpu {

// `half`: float16, else float. `aligned`: all pointers are multiples of 16. They throw std::invalid_argument.

// Inputs X, W, b, R if any; output Y.
Plan linear_plan(const LinearProblem& p, bool half, bool aligned, const DeviceFacts& device);

// X W, for the vendor's library, and the plan of what follows it: inputs X, W, b, R if any; Y holds X W.
GemmProblem linear_product(const LinearProblem& p);
Plan linear_rest_plan(const LinearProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
