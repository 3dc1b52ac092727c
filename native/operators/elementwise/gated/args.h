// Arguments of gated_*.
#pragma once

#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kGatedThreads = 256;

struct GatedArgs : Arguments<3, 72> {
  In a, b;  // the same tensor for GatedHalves
  Out y;
  uint32_t total;  // elements of y
  Divisor D;       // elements of a row of y
  uint32_t skip;   // elements between the end of a row of a or b and the next row; 0 without halves
  uint32_t a_first, b_first;  // offsets of the first elements
  int32_t vectors;            // 1: all pointers and rows are multiples of 16 bytes
  Activation act;
};

}  // namespace graphopt::hip
