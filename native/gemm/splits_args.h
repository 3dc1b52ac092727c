// Arguments of gemm_sum_*.
#pragma once

#include "device/args.h"
#include "gemm/args.h"

namespace graphopt::hip {

constexpr int kGemmSumThreads = 256;

// One work-item for each pack of a row of Y: `packs` in total, `across` in a row. A matrix has `rows` rows. `partial`
// has the shape [matrices, splits, rows, N].
struct GemmSumArgs : Arguments<4, size_with_epilogue(68)> {
  In partial, bias, residual;  // bias and residual may be null
  Out y;
  int32_t N, splits;
  uint32_t packs;
  Divisor across, rows;
  Epilogue epilogue;
};

}  // namespace graphopt::hip
