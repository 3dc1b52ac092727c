// Arguments of kernels that read weights of 2, 4 or 8 bits (packed.h).
#pragma once

#include "device/args.h"

namespace graphopt::hip {

// The conversion of a zero point to float16: 1024 plus the zero point is the float16 value (stored & mask) | bits,
// minus both float16 values of `added`.
struct ZeroPointFormat {
  uint32_t mask, bits, added;
};

// Rows of packed weights, which consist of blocks of `size` elements along K, a multiple of 16. Each block has a scale
// and a zero point of `zero_point_bits` bits: the bits of a weight, 16 or 32 for a float, or 0 without zero points.
struct PackedWeights {
  int32_t row_bytes, zero_point_row_bytes, zero_point_bits, blocks;
  Divisor size;
  ZeroPointFormat zero_point;  // for kernels that dequantize to float16
};

}  // namespace graphopt::hip
