// What gemm_* take.
#pragma once

#include "device/args.h"
#include "gemm/args.h"

namespace graphopt::hip {

// A [M, K], B [K, N].
struct GemmArgs : Arguments<6, with_epilogue(188)> {
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

// The same in float16 where both operands come in whole packs (gemm/pipelines/aligned.h): rows of A, and rows of B or,
// for gemm_turned_*, of B^T, each `a_row` and `b_row` elements behind another. There are `down` rows of `across`
// tiles.
struct GemmAlignedArgs : Arguments<6, with_epilogue(188)> {
  In a, b, bias, residual;  // bias and residual may be null
  Out y;
  Out partial;  // as of GemmArgs
  int32_t M, N, K, a_row, b_row, down;
  Divisor across;
  Axes batch;
  Strides a_batch, b_batch;
  Splits splits;
  Epilogue epilogue;
};

}  // namespace graphopt::hip
