// Element-wise operators on a GPU.
#pragma once

#include "blocks/gpu/walk_plan.h"
#include "device/program.h"
#include "operators/elementwise/elementwise/integer_args.h"
#include "operators/elementwise/elementwise/operations.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

struct ElementwiseProblem {
  hip::ElementwiseOp op = hip::kCopyOp;
  float p = 0, q = 0;  // hip::ElementwiseArgs
  bool masked = false, binary = false;
  Shape mask, a, b, y;
};

// Inputs a, b if `binary`, mask if `masked`; output y. `aligned`: all pointers are multiples of 16. Throws
// std::invalid_argument if an input does not broadcast to y, if a size is too large, or if too many axes cannot be
// merged.
Plan elementwise_plan(const ElementwiseProblem& problem, bool half, bool aligned);

using hip::IntegerOp;

// Like ElementwiseProblem, but for integers of `bytes` (1, 2, 4 or 8) bytes. low and high are the limits of
// kClip.
struct IntegerElementwiseProblem {
  IntegerOp op = IntegerOp::kNeg;
  bool masked = false, binary = false, is_signed = true;
  int64_t bytes = 8, low = 0, high = 0;
  Shape mask, a, b, y;
};

// The same as elementwise_plan for an IntegerElementwiseProblem.
Plan integer_elementwise_plan(const IntegerElementwiseProblem& problem, bool aligned);

// y = x, broadcast along the axes of x that have size 1.
Plan broadcast_plan(const Shape& x, const Shape& y, bool half, bool aligned);

// y = a + b, with b broadcast along the axes of b that have size 1; y has a's shape.
Plan add_plan(const Shape& a, const Shape& b, bool half, bool aligned);

}  // namespace graphopt::gpu

namespace graphopt {

// Plans an integer operator with one input: input 0 to output 0.
void plan_integer_unary(Call& call, gpu::Program& program, gpu::IntegerOp op, int64_t low = 0,
                        int64_t high = 0);

}  // namespace graphopt
