// MatMulNBits on a GPU.
#pragma once

#include <optional>

#include "device/launch.h"
#include "gemm/planner.h"

namespace graphopt::gpu {

// Y [M, N] = A [M, K] B^T + bias. B [N, K] has elements of 2, 4 or 8 bits.
struct NBitsProblem {
  int64_t M = 1, N = 1, K = 1;
  int bits = 4;
  int64_t size = 32;  // elements of a block along K, a multiple of 16
  bool has_zero_points = false, packed_zero_points = false, has_g_idx = false, has_bias = false;
};

// Inputs 0 to 5: A, B, scales, zero points, g_idx, bias; omitted inputs keep their index. Output Y. `aligned`: all
// pointers are multiples of 16. `wanted` selects the kernel of gemm.hip or warpgroup.hip with this tile, also for few
// rows, if it supports the problem. Throws std::invalid_argument if a size is too large.
Plan matmul_nbits_plan(const NBitsProblem& p, bool half, bool aligned, const DeviceFacts& device,
                       std::optional<GemmTile> wanted = std::nullopt);

// Returns whether dequantize_nbits_plan, followed by a GEMM of the dequantized B, is faster than matmul_nbits_plan.
bool wants_dequantized(const NBitsProblem& p, bool half, bool aligned, const DeviceFacts& device);

// Inputs as above, without A and bias; output B [N, K] in the type of the scales. Throws std::invalid_argument if a
// size is too large.
Plan dequantize_nbits_plan(const NBitsProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
