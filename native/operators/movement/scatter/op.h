// ScatterElements and ScatterND on a GPU.
#pragma once

#include "blocks/gpu/walk_plan.h"
#include "operators/movement/scatter/args.h"

namespace graphopt::gpu {

using hip::ScatterReduction;

// x and y [sizes..., inner]. For ScatterElements inner is 1, and `indices` holds positions along `axis`. For
// ScatterND the last axis of `indices` has an index for each of the sizes, and an update is a row of inner
// elements.
struct ScatterProblem {
  Shape sizes, indices;
  int64_t inner = 1;
  bool elements = false;
  size_t axis = 0;
  ElementType type = ElementType::kFloat;
  int64_t bytes = 4;    // per element
  bool narrow = false;  // indices are int32_t
  ScatterReduction reduction = ScatterReduction::kNone;
};

// Inputs x, indices, updates; output y. `aligned`: all pointers are multiples of 16. Throws std::invalid_argument if
// the indices of ScatterElements are larger than x along another axis, if an index tuple has too many indices, if there
// is no kernel for the reduction, or if a size is 2^31 or more.
Plan scatter_plan(const ScatterProblem& p, bool aligned);

}  // namespace graphopt::gpu
