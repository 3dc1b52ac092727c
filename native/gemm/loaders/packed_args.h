// Arguments of kernels that read weights of 2, 4 or 8 bits (packed.h).
#pragma once

#include "device/args.h"

namespace graphopt::hip {

// How kernels compute 1024 plus a zero point in float16: (stored & mask) | bits is a float16, from which they subtract
// `added`. `added` holds the same float16 value, 0 or -1024, in both halves.
struct ZeroPointFormat {
  uint32_t mask, bits, added;
};

// Rows of packed weights. A row consists of blocks of `size` elements along K; `size` is a multiple of 16. Each block
// has a scale and a zero point. `zero_point_bits`: as many bits as a weight has, 16 or 32 if the zero point is a float,
// 0 if there are no zero points.
struct PackedWeights {
  int32_t row_bytes, zero_point_row_bytes, zero_point_bits, blocks;
  Divisor size;
  ZeroPointFormat zero_point;  // for kernels that dequantize to float16
};

}  // namespace graphopt::hip
