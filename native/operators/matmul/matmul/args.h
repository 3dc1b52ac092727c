// Arguments of the gemm_* kernels.
#pragma once

#include "device/args.h"
#include "gemm/args.h"

namespace graphopt::hip {

// A [M, K], B [K, N].
struct GemmArgs : Arguments<6, size_with_epilogue(188)> {
  In a, b, bias, residual;  // bias and residual may be null
  Out y;
  Out partial;  // [matrices, splits, M, N]; null with one split
  int32_t M, N, K;
  OperandLayout a_layout, b_layout;
  Axes batch;
  Strides a_batch, b_batch;
  Splits splits;
  Epilogue epilogue;
};

// The same in float16 for operands whose rows consist of complete packs (gemm/pipelines/aligned.h). The rows of A are
// `a_row` elements apart; the rows of B, or of B^T for gemm_transposed_panels_*, are `b_row` elements apart. The grid
// has `down` rows of `across` tiles.
struct GemmAlignedArgs : Arguments<6, size_with_epilogue(188)> {
  In a, b, bias, residual;  // bias and residual may be null
  Out y;
  Out partial;  // see GemmArgs
  int32_t M, N, K, a_row, b_row, down;
  Divisor across;
  Axes batch;
  Strides a_batch, b_batch;
  Splits splits;
  Epilogue epilogue;
};

}  // namespace graphopt::hip
