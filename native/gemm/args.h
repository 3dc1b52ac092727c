// What the kernels of products take of their operands.
#pragma once

#include "device/args.h"
#include "device/integers.h"
#include "operators/activation.h"

namespace graphopt::hip {

// Element (line, k) is at line `line` + k `k`; one of the two strides is 1. `packs`: all lines, or all k, are
// whole packs that start at multiples of 16 bytes.
struct OperandLayout {
  int32_t line, k, packs;
};

// K is split among `splits` work-groups, which take `depth` of it each.
struct Splits {
  Divisor splits;
  int32_t depth;
};

// What happens to the sums. R and Y are [M, N], one after the other; R may be Y. Bias is [N]; that of the next of
// several matrices is `bias_step` elements behind it. `packs`: the pointers and rows are multiples of 16 bytes.
struct Epilogue {
  float alpha, beta;
  int32_t packs, bias_step;
  Activation act;
};
// Bytes of arguments that end with an epilogue after `before` bytes of other members.
constexpr size_t with_epilogue(size_t before) { return (before + sizeof(Epilogue) + 7) / 8 * 8; }

}  // namespace graphopt::hip
