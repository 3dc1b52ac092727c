// Arguments of quantize_*, dequantize_* and dynamic_scale.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kQuantizeThreads = 256;  // work-group size; a work-item converts 16 bytes of floats

// The number of scales and zero points of x [outer, size, inner].
enum class Scales : int32_t {
  kOne,     // one for all elements
  kAxis,    // one for each index along `size`
  kBlocks,  // [outer, blocks, inner]: one for each block of indices along `size`
};

struct QuantizeArgs : Arguments<4, 96> {
  In x, scale, zero;  // if zero is null, zero points are 0
  Out y;
  uint32_t total;
  Scales scales;
  Divisor inner, size, block;
  uint32_t blocks;
  int32_t is_signed;   // for elements of 4, 8 and 16 bits
  int32_t vectors;     // all addresses are multiples of 16 bytes
  int32_t zero_first;  // the zero point is added before rounding
};

constexpr int kDynamicThreads = 64;  // only the first work-item computes

// Computes the scale and the uint8 zero point for values in [least, most].
struct DynamicScaleArgs : Arguments<4, 32> {
  In least, most;
  Out scale, zero;
};

}  // namespace graphopt::hip
