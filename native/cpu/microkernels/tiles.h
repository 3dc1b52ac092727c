// Matrix multiplication in bfloat16 with Intel AMX tiles. For kernel files only (see cpu/isa.h).
//
// A tile has 16 rows of 64 bytes: 16 words of two bfloat16 values, or 16 sums in float32. One instruction multiplies
// two tiles and adds the result to a tile of sums:
//
//   a tile of rows     [16 rows][16 steps]       the words of each row at 16 steps along K; a step is two values of k
//   a tile of columns  [16 steps][16 columns]    in the layout of gemm.h's panels
//
// Blocks of two by two tiles use each loaded tile twice. Kernels ignore the padding in a tile of sums.
// Padding along the steps must be zero in both operands, because zero times uninitialized memory may be NaN.
#pragma once

#include "cpu/isa.h"
#include "cpu/microkernels/gemm.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

constexpr int64_t kTileSide = 16;  // number of rows of a tile, and of words or sums in a row
constexpr int64_t kTileWords = kTileSide * kTileSide;
constexpr int64_t kBlockTiles = 2;  // number of tiles of a block in each direction
constexpr int64_t kBlockRows = kBlockTiles * kTileSide;

// Whether kernels multiply in tiles: if they are compiled for AVX-512 with BF16 and the machine has AMX.
#if defined(__AVX512BF16__)
constexpr bool kHasTiles = true;
inline bool with_tiles() { return isa() == Isa::kAmx; }
#else
constexpr bool kHasTiles = false;
constexpr bool with_tiles() { return false; }
#endif

// Rounds the steps up to full tiles if kernels multiply in tiles.
inline int64_t tiled_steps(int64_t steps) { return with_tiles() ? round_up(steps, kTileSide) : steps; }

// Configures the tiles of this thread and releases them on destruction, so the operating system does not save them
// afterwards.
class TileRegisters {
 public:
  TileRegisters() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } eight_tiles;
    static_assert(sizeof eight_tiles == 64);
    asm volatile("ldtilecfg %0" ::"m"(eight_tiles));
  }
  ~TileRegisters() { asm volatile("tilerelease"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// The AMX instructions. Template arguments are the indices of tiles; rows in memory are `bytes` apart. The code is
// assembly, because gcc's header does not tell the compiler that the instructions read memory.
template <int kNumber>
[[gnu::always_inline]] inline void load_tile(const void* from, int64_t bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(bytes), "i"(kNumber) : "memory");
}
template <int kNumber>
[[gnu::always_inline]] inline void store_tile(void* to, int64_t bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(bytes), "i"(kNumber) : "memory");
}
template <int kNumber>
[[gnu::always_inline]] inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kNumber));
}
template <int kSums, int kRows, int kColumns>
[[gnu::always_inline]] inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kColumns));
}

// Tiles at constant distances, in words: `next_steps` to the tile of the next 16 steps, `next` between the tiles of a
// block, and `row` between rows.
struct Tiles {
  const Word* first;
  int64_t next_steps, next, row;
  const Word* at(int64_t k, int64_t i) const { return first + k * next_steps + i * next; }
  int64_t bytes(int64_t) const { return row * static_cast<int64_t>(sizeof(Word)); }
};

// Prefetches operands of a later multiplication into the second-level cache: `lines` cache lines for each 16 steps.
struct PrefetchLines {
  const char* next = nullptr;
  int64_t lines = 0;
  void step() {
    for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(next + 64 * i, 0, 2);
    next += 64 * lines;
  }
};

// Computes the sums over 16 * `count` steps of a block of kRows by kColumns tiles, and stores them in rows of
// o that are o_row floats apart.
template <int kRows, int kColumns, class Rows, class Columns>
inline void multiply_block(const Rows& a, const Columns& b, int64_t count, float* o, int64_t o_row,
                           PrefetchLines prefetch) {
  static_assert(kRows <= kBlockTiles && kColumns <= kBlockTiles);
  // Tiles 0 to 3 hold sums, row by row; 4 and 5 hold rows, 6 and 7 columns.
  clear_tile<0>();
  if constexpr (kColumns > 1) clear_tile<1>();
  if constexpr (kRows > 1) clear_tile<2>();
  if constexpr (kRows > 1 && kColumns > 1) clear_tile<3>();
  for (int64_t k = 0; k < count; ++k) {
    prefetch.step();
    load_tile<4>(a.at(k, 0), a.bytes(k));
    load_tile<6>(b.at(k, 0), b.bytes(k));
    multiply_tiles<0, 4, 6>();
    if constexpr (kColumns > 1) {
      load_tile<7>(b.at(k, 1), b.bytes(k));
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (kRows > 1) {
      load_tile<5>(a.at(k, 1), a.bytes(k));
      multiply_tiles<2, 5, 6>();
      if constexpr (kColumns > 1) multiply_tiles<3, 5, 7>();
    }
  }
  const int64_t bytes = o_row * static_cast<int64_t>(sizeof(float));
  store_tile<0>(o, bytes);
  if constexpr (kColumns > 1) store_tile<1>(o + kTileSide, bytes);
  if constexpr (kRows > 1) store_tile<2>(o + kTileSide * o_row, bytes);
  if constexpr (kRows > 1 && kColumns > 1) store_tile<3>(o + kTileSide * o_row + kTileSide, bytes);
}

// The same for numbers of tiles that are known at run time: `rows` and `columns` are 1 or 2.
template <class Rows, class Columns>
void multiply_block(int64_t rows, int64_t columns, const Rows& a, const Columns& b, int64_t count, float* o,
                    int64_t o_row, PrefetchLines prefetch = {}) {
  if (rows > 1) {
    if (columns > 1) return multiply_block<2, 2>(a, b, count, o, o_row, prefetch);
    return multiply_block<2, 1>(a, b, count, o, o_row, prefetch);
  }
  if (columns > 1) return multiply_block<1, 2>(a, b, count, o, o_row, prefetch);
  multiply_block<1, 1>(a, b, count, o, o_row, prefetch);
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
