// What gemm_* and gemm_sum_* take.
#pragma once

#include "blocks/gpu/product_args.h"
#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

// K is split among `splits` work-groups, which take `depth` of it each.
struct Splits {
  Divisor splits;
  int32_t depth;
};

// What happens to the sums. R and Y are [M, N], one after the other; R may be Y. Bias is [N]. `packs`: the
// pointers and rows are multiples of 16 bytes.
struct Epilogue {
  float alpha, beta;
  int32_t packs;
  Activation act;
};

// A [M, K], B [K, N].
struct GemmArgs {
  static constexpr int kSlots = 6;
  In a, b, bias, residual;  // bias and residual may be null
  Out y;
  Out partial;  // [matrices, splits, M, N] where there is more than one split
  int32_t M, N, K;
  OperandLayout a_layout, b_layout;
  Axes batch;
  Strides a_batch, b_batch;
  Splits splits;
  Epilogue epilogue;
};
static_assert(is_args<GemmArgs>(216), "one layout for all compilers");

constexpr int kGemmSumThreads = 256;

// One work-item for each pack of a row of Y, of which there are `packs` in all and `across` in a row;
// matrices have `rows`.
struct GemmSumArgs {
  static constexpr int kSlots = 4;
  In partial, bias, residual;  // bias and residual may be null
  Out y;
  int32_t N, splits;
  uint32_t packs;
  Divisor across, rows;
  Epilogue epilogue;
};
static_assert(is_args<GemmSumArgs>(96), "one layout for all compilers");

}  // namespace graphopt::hip
