// What the kernels of products take of their operands.
#pragma once

#include "device/integers.h"

namespace graphopt::hip {

// Element (line, k) is at line `line` + k `k`; one of the two strides is 1. `packs`: all lines, or all k, are
// whole packs that start at multiples of 16 bytes.
struct OperandLayout {
  int32_t line, k, packs;
};

}  // namespace graphopt::hip
