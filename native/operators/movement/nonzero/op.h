// NonZero on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

// Numbers of `bytes` bytes; of floats the sign says nothing.
struct NonzeroType {
  int64_t bytes = 4;
  bool is_float = true;
};

// How many parts `total` numbers have.
int64_t nonzero_parts(int64_t total);

// Input x; outputs the number of those that are not zero (int64_t [1]), and how many of them are in front of
// each part (uint32_t, as int32_t). Throws std::invalid_argument.
Plan nonzero_count_plan(int64_t total, const NonzeroType& type);

// Inputs x and what is in front of each part; output their places, int64_t [axes of x, all]. Throws
// std::invalid_argument.
Plan nonzero_places_plan(const Shape& x, const NonzeroType& type, int64_t all);

}  // namespace graphopt::gpu
