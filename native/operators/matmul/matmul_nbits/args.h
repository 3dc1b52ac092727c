// Arguments of the matmul_nbits_* kernels. A [M, K]; B [N, blocks, size * bits / 8] bytes, low bits first; scales and
// zero points [N, blocks]. Zero points are packed like B, in rows of whole bytes, or have A's type. If they are
// omitted, they are 2^(bits - 1), and `zero_points` may be any memory.
#pragma once

#include "device/args.h"
#include "gemm/args.h"
#include "gemm/loaders/packed_args.h"

namespace graphopt::hip {

// On the vector unit (kernel.hip): matmul_nbits_* for any layout, matmul_nbits_packs_* for rows of packs of 16 bytes.
constexpr int kNBitsThreads = 128;
// Numbers of rows and columns of Y that a wave computes. The kernels named "few" are for decoding, where A has one row;
// the kernels named "many" are for prompts.
constexpr int kNBitsFewRows = 1, kNBitsFewColumns = 2;
constexpr int kNBitsManyRows = 8, kNBitsManyColumns = 4;

// dequantize_nbits_* has the same arguments but reads neither A nor the bias: its Y is B [N, K] dequantized.
struct NBitsArgs : Arguments<7, 120> {
  In a;
  Constant b, scales, zero_points;
  Constant g_idx;  // int32_t: the block of each k; null: k / size
  Constant bias;   // [N] or null
  Out y;
  PackedWeights weights;
  int32_t M, N, K, bits;
  int32_t packs;  // whether rows of Y consist of packs of 16 bytes; only for dequantize_nbits_*
};

// Few rows on the matrix units (rows.hip): a work-group computes all rows of `tiles` tiles of 16 columns, and its
// `waves` waves split K.
constexpr int kNBitsTileRows = 16;
// The number of weights of a column that a work-item loads at once: 8 bytes of 2 bits, or 16 bytes of 4 or 8 bits.
constexpr int row_elements(int bits) { return bits == 8 ? 16 : 32; }
// The number of such loads of a column in a slice of K, if a work-item multiplies them by `rows` rows of A. More loads
// would need too many registers.
constexpr int row_loads(int rows) { return rows == 1 ? 2 : 1; }
// The maximum number of work-items of a work-group, by the number of blocks in a load. With 256 work-items the kernel
// may use more registers.
constexpr int row_threads(int blocks) { return blocks == 1 ? 512 : 256; }

struct NBitsRowsArgs : Arguments<6, 112> {
  In a;
  Constant b, scales, zero_points;
  Constant bias;  // [N] or null
  Out y;
  PackedWeights weights;
  int32_t M, N, K, waves, tiles;
};

// Many rows: a GEMM (gemm.hip). The grid has `down` rows of `across` tiles.
struct NBitsGemmArgs : Arguments<8, size_with_epilogue(148)> {
  In a;
  Constant b, scales, zero_points;
  In bias, residual;  // bias may be null; residual is null
  Out y;
  Out partial;  // [splits, M, N]; null with one split
  PackedWeights weights;
  int32_t M, N, K, down;
  Divisor across;
  Splits splits;
  Epilogue epilogue;
};

// Many rows on NVIDIA's warpgroups (warpgroup.hip). A work-group computes kNBitsWarpgroupColumns columns of Y for a
// tile of rows; `down` work-groups have the same columns. LDS has kNBitsWarpgroupStages steps of kNBitsWarpgroupDepth
// indices k.
constexpr int kNBitsWarpgroupThreads = 256, kNBitsWarpgroupColumns = 128, kNBitsWarpgroupDepth = 64;
constexpr int kNBitsWarpgroupStages = 4;
constexpr int kNBitsWarpgroupBlock = 32;  // block sizes are multiples of this number
// Bytes of LDS: elements of A and packed weights of these steps, and dequantized weights of three steps.
constexpr int warpgroup_lds(int rows, int bits) {
  return kNBitsWarpgroupDepth * (kNBitsWarpgroupStages * (rows * 2 + kNBitsWarpgroupColumns * bits / 8) +
                                 3 * kNBitsWarpgroupColumns * 2);
}

struct NBitsWarpgroupArgs : Arguments<6, 120> {
  In a;
  Constant b, scales, zero_points;
  Constant bias;  // [N] or null
  Out y;
  PackedWeights weights;
  int32_t M, N, K;
  int32_t is_aligned;  // whether rows of Y consist of packs of 16 bytes
  Divisor down;
};

}  // namespace graphopt::hip
