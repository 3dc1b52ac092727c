// How matrix products of any shape, and convolutions, run on a GPU without the vendor's libraries:
// hip/gemm.hip, hip/conv.hip.
#pragma once

#include <optional>

#include "gpu/walk.h"
#include "ops/activation.h"

namespace graphopt::gpu {

// Y = act(alpha A B + bias + beta R), A [batch.., M, K], B [batch.., K, N], R and Y [batch.., M, N]
// contiguous. `transpose_a`: the memory of A is [.., K, M]; the same for B. K may be 0. Sums, and all that
// follows, are float32.
struct GemmProblem {
  int64_t M = 1, N = 1, K = 1;
  bool transpose_a = false, transpose_b = false;
  abi::Shape batch;                       // of Y
  std::vector<int64_t> a_batch, b_batch;  // strides of A and B over it, in elements; 0 where broadcast
  float alpha = 1, beta = 0;              // R is not read where beta is 0
  // What libraries (gpu/libraries.h) do not do.
  bool has_bias = false;      // [N]
  bool has_residual = false;  // R is an input, else what Y holds
  Activation act;
};

// What a work-group multiplies. kVector: float16 on the vector unit, where there is no other, and on the CPU.
enum class ProductTile { kLarge, kSmall, kVector };

// Inputs A, B, bias, R, as far as the problem has them (R is always number 3); output Y. `aligned`: all of
// them are multiples of 16. `wanted` instead of the plan's own choice, if the device has it. Throws
// std::invalid_argument.
Plan gemm_plan(const GemmProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<ProductTile> wanted = std::nullopt);

// X [N, groups C, H, W], W [groups M, C, kernel], B [groups M] if any, Y [N, groups M, OH, OW].
struct ConvNdProblem {
  int64_t N = 1, groups = 1, C = 1, H = 1, W = 1, M = 1, OH = 1, OW = 1;
  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, dilation[2] = {1, 1}, pad[2] = {0, 0};  // pad: top, left
  int64_t pad_end[2] = {0, 0};                                                            // bottom, right
  bool has_bias = false;
};

// Inputs X, W, B if any; output Y. Otherwise as gemm_plan.
Plan conv_plan(const ConvNdProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<ProductTile> wanted = std::nullopt);

}  // namespace graphopt::gpu
