// MatMulNBits on a GPU.
#pragma once

#include <optional>

#include "device/launch.h"
#include "gemm/planner.h"

namespace graphopt::gpu {

// Y [M, N] = A [M, K] times B [N, K] transposed; the elements of B have 2, 4 or 8 bits.
struct NBitsProblem {
  int64_t M = 1, N = 1, K = 1;
  int bits = 4;
  int64_t size = 32;  // elements of a block along K, a multiple of 16
  bool has_points = false, packed_points = false, has_groups = false, has_bias = false;
};

// Inputs 0 to 5: A, B, scales, points, groups, bias, also if some are omitted; output Y. `aligned`: all pointers are
// multiples of 16. `wanted` overrides the planner's tile for problems that are GEMMs of tiles, also for few rows. Throws
// std::invalid_argument if a size is too large.
Plan matmul_nbits_plan(const NBitsProblem& p, bool half, bool aligned, const DeviceFacts& device,
                       std::optional<GemmTile> wanted = std::nullopt);

// Returns true if many rows are faster with B dequantized (dequantize_nbits_plan) and the GEMM kernels.
bool wants_dequantized(const NBitsProblem& p, bool half, bool aligned, const DeviceFacts& device);

// Inputs as above, without A and bias; output B [N, K] in the type of the scales. Throws std::invalid_argument if a size
// is too large.
Plan dequantize_nbits_plan(const NBitsProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
