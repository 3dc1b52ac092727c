// Packs rows for GEMMs that process them in chunks. For kernel files only (see cpu/isa.h).
#pragma once

#include "cpu/microkernels/tiles.h"
#include "cpu/parallel_for.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

constexpr int64_t kChunkBytes = 768 << 10;  // bytes of packed rows in a chunk: most of a second-level cache

constexpr int64_t kBlockCost = 6;  // cost of multiplying a block of rows by a panel; starting a panel costs 1

// Returns into how many parts the blocks of rows are divided for each panel (gemm.h). It is 1 if the threads can share
// whole panels evenly enough.
inline int64_t parts_of_rows(int64_t blocks, int64_t panels, int64_t workers) {
  return parts_of_least_cost(1, std::min(blocks, ceil_div(4 * workers, panels)), panels, workers,
                             [&](int64_t n) { return kBlockCost * ceil_div(blocks, n) + 1; });
}

// Prefetches the columns of a panel in `rows` rows of y, for writing.
template <class T>
inline void prefetch_rows(const T* y, int64_t y_stride, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i, y += y_stride) {
    __builtin_prefetch(y, 1);
    __builtin_prefetch(y + kWidth, 1);
  }
}

// Packs rows of `n` elements, x_stride apart, as a block of kBlockTiles tiles of rows (tiles.h): [group of 16
// steps][tile]. `tiles`: number of groups. The unused rows of a tile are not set; they do not affect the sums of the
// packed rows.
template <class T>
void pack_tiles(const T* x, int64_t x_stride, int64_t rows, int64_t n, int64_t tiles, Word* to) {
  for (int64_t i = 0; i < rows; ++i, x += x_stride) {
    Word* row = to + i * kTileSide;
    for (int64_t k = 0; k < tiles; ++k, row += kBlockTiles * kTileWords) {
      const int64_t at = k * kTileSide * Bfloat16Pairs::kDepth;
      *reinterpret_cast<AlignedWords*>(row) = row_words<Bfloat16Pairs>(x + at, n - at);
    }
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
