// Arguments of gather_block_quantized.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kGatherBlocksThreads = 256;  // work-group size; a work-item writes 16 bytes of y

// x is [outer, size, inner] with the gathered axis in the middle, and [.., q_size, q_inner] with blocks along q_size. y
// is [outer, indices, inner]. Elements of x and zero points have 2, 4 or 8 bits, low bits first.
struct GatherBlocksArgs : Arguments<5, 152> {
  In x, index;  // index: int64_t, or int32_t if `narrow`; negative indices count from the end
  In scale;     // [.., blocks, q_inner]
  In zero;      // like scale, in rows of `zero_row` elements and `zero_row_bytes` bytes; null: `default_zero`
  Out y;
  uint32_t total;
  uint32_t size, blocks, zero_row_bytes;
  Divisor inner, indices, q_inner, q_size, block, zero_row;
  int32_t bits, is_signed, default_zero, narrow;
  int32_t uses_packs;  // each 16 bytes of y have one scale, and all addresses are multiples of 16 bytes
};

}  // namespace graphopt::hip
