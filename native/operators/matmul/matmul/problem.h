// Sizes and strides of a matrix multiplication.
#pragma once

#include <cstdint>
#include <vector>

#include "operators/activation.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

// Y = act(alpha A B + bias + beta R), A [batch.., M, K], B [batch.., K, N], R and Y [batch.., M, N]
// contiguous. `transpose_a`: the memory of A is [.., K, M]; the same for B. K may be 0. Sums, and all that
// follows, are float32.
struct GemmProblem {
  int64_t M = 1, N = 1, K = 1;
  bool transpose_a = false, transpose_b = false;
  Shape batch;                            // of Y
  std::vector<int64_t> a_batch, b_batch;  // strides of A and B over it, in elements; 0 where broadcast
  float alpha = 1, beta = 0;              // R is not read where beta is 0
  // What libraries (device/libraries/libraries.h) do not do.
  bool has_bias = false;      // [N]
  int64_t bias_step = 0;      // elements from one matrix's bias to the next one's
  bool has_residual = false;  // R is an input, else what Y holds
  Activation act;
};

}  // namespace graphopt::gpu

namespace graphopt {

struct MatmulShapes {
  gpu::GemmProblem problem;
  Shape y;
};
// The product of A and B as numpy's matmul defines it, and the shape of its result. `transpose_a`: the last two axes of
// A change places before; the same for B. Throws Error.
MatmulShapes matmul_of(const Shape& a, const Shape& b, bool transpose_a, bool transpose_b);

}  // namespace graphopt
