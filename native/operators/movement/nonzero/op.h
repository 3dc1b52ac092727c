// NonZero on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

// Elements of `bytes` bytes; the sign bit of floats is ignored.
struct NonzeroType {
  int64_t bytes = 4;
  bool is_float = true;
};

// Returns the number of parts of `total` elements. One work-group processes a part, of kNonzeroPart elements.
int64_t nonzero_parts(int64_t total);

// Input x; outputs the number of nonzero elements (int64_t [1]), and for each part the number of nonzero
// elements before it (uint32_t, declared as int32_t). Throws std::invalid_argument if x has 2^31 elements or more.
Plan nonzero_count_plan(int64_t total, const NonzeroType& type);

// Inputs x and the number of nonzero elements before each part; output the indices of the nonzero elements,
// int64_t [axes of x, all]. Throws std::invalid_argument if x has too many axes, or 2^31 elements or more.
Plan nonzero_indices_plan(const Shape& x, const NonzeroType& type, int64_t all);

}  // namespace graphopt::gpu
