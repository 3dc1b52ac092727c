// How matrix products of any shape, and convolutions, run on a GPU without the vendor's libraries:
// operators/matmul/kernel.hip, operators/convolution/product.hip.
#pragma once

#include <optional>

#include "blocks/gpu/walk_plan.h"
#include "operators/activation.h"
#include "operators/convolution/plan.h"

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
  // What libraries (device/libraries/libraries.h) do not do.
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

// A convolution that is not transposed and whose first axis is not used. Inputs X, W, B if any; output Y.
// Otherwise as gemm_plan.
Plan conv_plan(const ConvolutionProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<ProductTile> wanted = std::nullopt);

}  // namespace graphopt::gpu
