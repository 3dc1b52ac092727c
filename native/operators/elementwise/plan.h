// How element-wise operators run on a GPU: operators/elementwise/kernel.hip.
#pragma once

#include "blocks/gpu/walk_plan.h"
#include "operators/elementwise/operations.h"
#include "operators/symbolic_shape.h"

namespace graphopt::gpu {

struct ElementwiseProblem {
  hip::ElementwiseOp op = hip::kCopyOp;
  float p = 0, q = 0;
  bool masked = false, binary = false;
  abi::Shape mask, a, b, y;
};

// Inputs a, b if any, mask if any; output y. `aligned`: all pointers are multiples of 16. Throws
// std::invalid_argument.
Plan elementwise_plan(const ElementwiseProblem& problem, bool half, bool aligned);

}  // namespace graphopt::gpu
