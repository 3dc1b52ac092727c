// Sizes and strides of a matrix multiplication.
#pragma once

#include <cstdint>
#include <vector>

#include "operators/activation.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

// Y = act(alpha A B + bias + beta R), A [batch.., M, K], B [batch.., K, N], R and Y [batch.., M, N] contiguous.
// `transpose_a`: A is stored as [.., K, M]; the same for B. K may be 0. Sums and epilogue are float32.
struct GemmProblem {
  int64_t M = 1, N = 1, K = 1;
  bool transpose_a = false, transpose_b = false;
  Shape batch;                            // batch axes of Y
  std::vector<int64_t> a_batch, b_batch;  // strides over the batch, in elements; 0 for broadcast axes
  float alpha = 1, beta = 0;              // R is not read if beta is 0
  // The vendors' libraries (device/libraries/libraries.h) ignore the members below.
  bool has_bias = false;      // [N]
  int64_t bias_step = 0;      // stride of the bias over matrices, in elements
  bool has_residual = false;  // R is an input; otherwise R is the previous content of Y
  Activation act;
};

}  // namespace graphopt::gpu

namespace graphopt {

struct MatmulShapes {
  gpu::GemmProblem problem;
  Shape y;
};
// Returns the problem and the output shape of numpy's matmul. `transpose_a`: the last two axes of A are swapped first;
// the same for B. Throws Error.
MatmulShapes matmul_of(const Shape& a, const Shape& b, bool transpose_a, bool transpose_b);

}  // namespace graphopt
