// How MatMul, Gemm and Conv of any shape run on a GPU without the vendor's libraries: hip/gemm.hip,
// hip/conv.hip.
#pragma once

#include "gpu/walk.h"

namespace graphopt::gpu {

// Y = alpha A B + beta Y, A [batch.., M, K], B [batch.., K, N], Y [batch.., M, N] contiguous. `transpose_a`:
// the memory of A is [.., K, M]; the same for B.
struct GemmProblem {
  int64_t M = 1, N = 1, K = 1;
  bool transpose_a = false, transpose_b = false;
  abi::Shape batch;                       // of Y
  std::vector<int64_t> a_batch, b_batch;  // strides of A and B over it, in elements; 0 where broadcast
  float alpha = 1, beta = 0;
};

// Inputs A, B; output Y. Throws std::invalid_argument. K must not be 0.
Plan gemm_plan(const GemmProblem& p, bool half);

// X [N, groups C, H, W], W [groups M, C, kernel], B [groups M] if any, Y [N, groups M, OH, OW].
struct ConvNdProblem {
  int64_t N = 1, groups = 1, C = 1, H = 1, W = 1, M = 1, OH = 1, OW = 1;
  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, dilation[2] = {1, 1}, pad[2] = {0, 0};  // pad: top, left
  int64_t pad_end[2] = {0, 0};                                                            // bottom, right
  bool has_bias = false;
};

// Inputs X, W, B if any; output Y. Throws std::invalid_argument.
Plan conv_plan(const ConvNdProblem& p, bool half);

}  // namespace graphopt::gpu
