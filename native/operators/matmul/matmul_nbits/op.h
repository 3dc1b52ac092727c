// MatMulNBits on a GPU.
#pragma once

#include "device/launch.h"

namespace graphopt::gpu {

// Y [M, N] = A [M, K] times B [N, K] transposed; the elements of B have 2, 4 or 8 bits.
struct NBitsProblem {
  int64_t M = 1, N = 1, K = 1;
  int bits = 4;
  int64_t size = 32;  // elements of a block along K, a multiple of 16
  bool has_points = false, packed_points = false, has_groups = false, has_bias = false;
};

// Inputs 0 to 5: A, B, scales, points, groups, bias, also if some are omitted; output Y. Throws
// std::invalid_argument if a size is too large.
Plan matmul_nbits_plan(const NBitsProblem& p, bool half, int wave);

}  // namespace graphopt::gpu
