// GatherBlockQuantized on a GPU.
#pragma once

#include "device/launch.h"

namespace graphopt::gpu {

// Gathers rows of x along an axis and dequantizes them: y = (x - zero) scale. x is [outer, size, inner] with the
// gathered axis in the middle, and [q_outer, q_size, q_inner] with blocks along q_size. All sizes are in elements.
struct GatherBlocksProblem {
  int64_t outer = 1, size = 1, inner = 1, indices = 1;
  int64_t q_outer = 1, q_size = 1, q_inner = 1, block = 32;
  int bits = 4;
  bool is_signed = false;
  bool has_zero = false;
  int64_t zero_row = 1;  // zero points in a row; rows are padded to whole bytes
  int default_zero = 0;  // the zero point if none are given
  bool narrow = false;   // indices are int32_t
  bool half = false;     // scales and y are float16
};

// Inputs x, indices, scales, zero points if any; output y. `aligned`: all addresses are multiples of 16 bytes. Throws
// std::invalid_argument if a size is too large.
Plan gather_block_quantized_plan(const GatherBlocksProblem& p, bool aligned);

}  // namespace graphopt::gpu
