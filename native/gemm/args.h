// Arguments that the GEMM kernels share: operands, splits of K, epilogue.
#pragma once

#include "device/args.h"
#include "device/integers.h"
#include "operators/activation.h"

namespace graphopt::hip {

// Element (line, k) is at `line` times the member line plus `k` times the member k; one of the two strides is
// 1. A line is a row of the left operand or a column of the right one. `packs`: all lines, or all k, consist
// of packs that start at multiples of 16 bytes.
struct OperandLayout {
  int32_t line, k, packs;
};

// K is split among `splits` work-groups, each with `depth` of it.
struct Splits {
  Divisor splits;
  int32_t depth;
};

// The operations that follow the sums. R and Y are [M, N] matrices, stored consecutively; R may be Y. Bias is
// [N], and matrix i has its bias at element i * bias_step. `packs`: pointers and rows are multiples of 16
// bytes.
struct Epilogue {
  float alpha, beta;
  int32_t packs, bias_step;
  Activation act;
};
// Returns the size of arguments that have `before` bytes of other members and end with an epilogue.
constexpr size_t size_with_epilogue(size_t before) { return (before + sizeof(Epilogue) + 7) / 8 * 8; }

}  // namespace graphopt::hip
