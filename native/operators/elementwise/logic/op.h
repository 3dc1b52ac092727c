// Comparisons, logic and tests such as IsNaN on a GPU. Their results are bool.
#pragma once

#include "blocks/gpu/walk_plan.h"
#include "operators/elementwise/logic/args.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

struct LogicProblem {
  hip::LogicOp op = hip::LogicOp::kNot;
  ElementType type = ElementType::kBool;  // element type of the inputs
  bool binary = false;
  Shape a, b, y;
};

// Inputs a, and b if `binary`; output y of bytes 0 and 1. `aligned`: all pointers are multiples of 16. Throws
// std::invalid_argument if there is no kernel for the type, or if an input does not broadcast to y. Throws it also if a
// size is too large, or if too many axes cannot be merged.
Plan logic_plan(const LogicProblem& problem, bool aligned);

}  // namespace graphopt::gpu
