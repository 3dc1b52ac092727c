// Arguments of the matmul_nbits_* kernels.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kNBitsThreads = 128;
// Rows and columns of Y that a wave computes: few for decoding, where a single row reads all weights, and many
// for prompts.
constexpr int kNBitsFewRows = 1, kNBitsFewColumns = 2;
constexpr int kNBitsManyRows = 8, kNBitsManyColumns = 4;

// A [M, K]; B [N, blocks, size * bits / 8] bytes, low bits first; scales and zero points [N, blocks].
struct NBitsArgs : Arguments<7, 88> {
  In a;
  Constant b, scales;
  Constant points;  // zero points: packed rows of bytes like B, or elements of A's type; null: 2^(bits - 1)
  Constant groups;  // int32_t: the block of each k; null: k / size
  Constant bias;    // [N] or null
  Out y;
  int32_t M, N, K, bits, size, blocks;
  int32_t row_bytes,
      point_bytes;  // bytes of a row of B, and of a row of packed zero points; point_bytes 0: not packed
};

}  // namespace graphopt::hip
