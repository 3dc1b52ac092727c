// Arguments that the GEMM kernels share: operands, splits of K, epilogue.
#pragma once

#include "device/args.h"
#include "device/integers.h"
#include "operators/activation.h"

namespace graphopt::hip {

// The strides of a GEMM operand, in elements: `line` from one line to the next, `k` from one index k to the
// next; one of the two is 1. A line is a row of the left operand or a column of the right one. `packs`: the
// axis of stride 1 consists of packs of 16 bytes that start at multiples of 16 bytes.
struct OperandLayout {
  int32_t line, k, packs;
};

// K is split among `splits` work-groups. Each work-group adds `depth` indices k.
struct Splits {
  Divisor splits;
  int32_t depth;
};

// The operations on the sums of a GEMM: Y = act(alpha * sums + bias + beta * R), with the residual R. R and Y
// are batches of consecutive [M, N] matrices; R may be Y. A bias has N elements; the bias of matrix i starts
// at element i * bias_step. `packs`: pointers and the sizes of rows are multiples of 16 bytes.
struct Epilogue {
  float alpha, beta;
  int32_t packs, bias_step;
  Activation act;
};
// Returns the size of arguments that have `before` bytes of other members and end with an epilogue.
constexpr size_t size_with_epilogue(size_t before) { return (before + sizeof(Epilogue) + 7) / 8 * 8; }

}  // namespace graphopt::hip
