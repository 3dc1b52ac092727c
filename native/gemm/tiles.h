// The tables of GEMM tiles. One row defines the enumerator of a tile, its kernels and their names
// (kernels.h), its entry in the planner (planner.h) and its tests (tests/hip/tiles.py).
//
// The tables are macros because the name of a kernel, which is not mangled, cannot depend on a template
// argument.
#pragma once

#include "device/traits.h"

namespace graphopt::hip {

// A work-group computes a tile of m x n elements. On the vector unit, a work-item computes `rows` x `columns` of these
// elements. On the matrix units of CDNA, a wave of 64 computes wave_m x wave_n of them.
struct VectorShape {
  int m, n, rows, columns, wave_m, wave_n;
  constexpr int threads() const { return m * n / (rows * columns); }
};
// A multiple of the depth of a step of every VectorShape.
constexpr int kVectorDepth = 16;

// A work-group computes a tile of m x n elements, and a wave computes wave_m x wave_n of them. A step covers
// `depth` indices of K, and LDS holds `stages` steps. With split_k > 1, split_k groups of waves compute the
// same tile, each with its share of the depth of a step.
struct MatrixShape {
  int m = 0, n = 0, wave_m = 0, wave_n = 0, depth = 0, stages = 0, split_k = 1;

  constexpr int threads(int wave) const { return split_k * (m / wave_m) * (n / wave_n) * wave; }
  // Returns the shape with waves of at least 32 columns. Waves of 16 columns become half as many waves of 32 columns,
  // in twice as many groups that share the depth.
  constexpr MatrixShape wide_waves() const {
    return wave_n == 16 ? MatrixShape{m, n, wave_m, 32, depth, stages, 2 * split_k} : *this;
  }
  // Returns the bytes of LDS. Its rows are padded and therefore begin in different banks. `right_by_k`: LDS has one row
  // of the right operand for each k, else for each column.
  constexpr int lds_bytes(bool right_by_k) const {
    return stages * 2 * (m * (depth + 8) + (right_by_k ? depth * (n + 8) : n * (depth + 8)));
  }
};
constexpr MatrixShape shape(int m, int n, int wave_m, int wave_n, int depth, int stages, int split_k = 1) {
  return {m, n, wave_m, wave_n, depth, stages, split_k};
}
constexpr MatrixShape no_shape() { return {}; }

// The cost of a tile on a compute unit, which computes several tiles at once or one after another.
struct TileCost {
  double fraction_of_peak = 0;  // fraction of the matrix units' peak rate that a kernel with many tiles has
  double step = 0;              // clocks of a step if the compute unit has no other tile
  double overhead = 0;          // clocks of a tile before its first step and after its last
};
constexpr TileCost cost(double fraction_of_peak, double step, double overhead) {
  return {fraction_of_peak, step, overhead};
}
constexpr TileCost no_cost() { return {}; }

// The targets that have a kernel. kCopiesToLds: targets where the bool of this name (traits.h) is true, which is
// NVIDIA. kThroughRegisters: all others.
enum class Targets { kNone, kCopiesToLds, kThroughRegisters, kAll };
constexpr bool runs_on(Targets targets, bool copies_to_lds) {
  return targets == Targets::kAll ||
         targets == (copies_to_lds ? Targets::kCopiesToLds : Targets::kThroughRegisters);
}

// clang-format off

// Tiles of pipelines/vector.h, the largest first: float32, and float16 for targets without matrix units.
// Columns:
//   name of the size
//   type of MatMul's and Conv's kernels; Winograd's kernels use every row
//   work-groups at once on an NVIDIA compute unit, for which Winograd's kernels are compiled
//   shape
//   fraction of the peak rate that Winograd's planner assumes for a full device
#define GEMM_VECTOR_TILES(TILE)                                      \
  TILE(128x128, f32, 2, (VectorShape{128, 128, 8, 8, 64, 64}), 0.70) \
  TILE(64x32,   f32, 7, (VectorShape{64, 32, 4, 4, 32, 32}),   0.40)
#define GEMM_VECTOR_F16_TILES(TILE) \
  TILE(64x128,  f16, 4, (VectorShape{64, 128, 8, 8, 64, 64}),  0.62)

// Float16 on the matrix units, operands of any layout (loaders/strided.h). A wave of 32 computes 32 columns: on RDNA 3,
// the sums of 64 columns would leave too few registers for the operands.
// Columns:
//   name of the size; type
//   work-groups at once on an NVIDIA compute unit, for which Winograd's kernels are compiled
//   shape of Winograd's kernels on NVIDIA
//   shape for waves of 64; shape for waves of 32, also of NVIDIA's other kernels
//   measured on an H200 for Winograd's planner: work-groups that keep a compute unit busy, and its FLOPs per clock then
#define GEMM_STRIDED_TILES(TILE)                                                                               \
  TILE(128x128, f16, 2, shape(128, 128, 64, 64, 64, 2),                                                        \
       shape(128, 128, 64, 64, 32, 1), shape(128, 128, 64, 32, 32, 2), 1, 820)                                 \
  TILE(64x64, f16, 6, shape(64, 64, 32, 64, 64, 2),                                                            \
       shape(64, 64, 32, 64, 32, 1), shape(64, 64, 32, 32, 32, 2), 2, 530)

// Float16 on the matrix units, operands in packs of 16 bytes (loaders/dense.h, im2col.h, halo.h, packed.h).
// If operands pass through registers, only small tiles fit. Columns:
//   name: the size for mma_sync, then split_k after an x, or the depth after a d
//   targets of kernels with dense.h or im2col.h
//   targets of kernels with halo.h (kAll: NVIDIA, and the CPU with waves of 32 for tests)
//   targets of kernels with packed.h: those where these kernels do not spill registers
//   targets of int8 kernels
//   work-groups at once on an NVIDIA compute unit
//   shapes for mma_sync, mfma (waves of 64) and wmma (waves of 32)
//   cost with dense.h, im2col.h or packed.h; cost with halo.h; cost of int8 on NVIDIA, with K in pairs of elements
// The costs are fitted to an H200 (scripts/gpu_bench.py --tiles). On AMD, kCountedCosts are used too (planner.cpp), and
// int8 has the costs of float16.
#define GEMM_ALIGNED_TILES(TILE)                                                                           \
  TILE(128x256, kCopiesToLds, kNone, kNone, kCopiesToLds, 1, shape(128, 256, 64, 64, 64, 3),               \
       no_shape(), no_shape(), cost(0.50, 1340, 8800), no_cost(), cost(0.318, 600, 7900))                  \
  TILE(256x128, kNone, kNone, kCopiesToLds, kNone, 1, shape(256, 128, 64, 64, 64, 3),                      \
       no_shape(), no_shape(), cost(0.42, 1340, 8800), no_cost(), no_cost())                               \
  TILE(192x192, kCopiesToLds, kNone, kNone, kNone, 1, shape(192, 192, 48, 96, 64, 3),                      \
       no_shape(), no_shape(), cost(0.48, 1260, 15200), no_cost(), no_cost())                              \
  TILE(192x160, kCopiesToLds, kCopiesToLds, kNone, kNone, 1, shape(192, 160, 48, 80, 64, 3),               \
       no_shape(), no_shape(), cost(0.48, 1100, 11000), cost(0.55, 800, 7900), no_cost())                  \
  TILE(192x128, kCopiesToLds, kCopiesToLds, kCopiesToLds, kCopiesToLds, 1, shape(192, 128, 48, 64, 64, 3), \
       no_shape(), no_shape(), cost(0.45, 900, 9000), cost(0.565, 600, 6000), cost(0.313, 600, 6440))      \
  TILE(128x160, kCopiesToLds, kCopiesToLds, kNone, kNone, 1, shape(128, 160, 32, 80, 64, 3),               \
       no_shape(), no_shape(), cost(0.47, 900, 9000), cost(0.49, 900, 7000), no_cost())                    \
  TILE(96x128, kCopiesToLds, kNone, kNone, kCopiesToLds, 2, shape(96, 128, 48, 32, 64, 3),                 \
       no_shape(), no_shape(), cost(0.36, 800, 8000), no_cost(), cost(0.194, 1790, 2620))                  \
  TILE(128x128, kAll, kAll, kThroughRegisters, kAll, 2, shape(128, 128, 64, 64, 64, 3),                    \
       shape(128, 128, 64, 64, 32, 1), shape(128, 128, 64, 32, 32, 1),                                     \
       cost(0.324, 1500, 6300), cost(0.565, 1550, 6500), cost(0.241, 600, 4310))                           \
  TILE(128x64, kAll, kCopiesToLds, kAll, kAll, 2, shape(128, 64, 64, 32, 64, 4),                           \
       shape(128, 64, 64, 32, 64, 1), shape(128, 64, 64, 32, 32, 1),                                       \
       cost(0.238, 670, 4200), cost(0.46, 860, 6700), cost(0.171, 1650, 2340))                             \
  TILE(64x64, kAll, kNone, kAll, kAll, 3, shape(64, 64, 32, 32, 64, 4),                                    \
       shape(64, 64, 32, 32, 64, 1), shape(64, 64, 32, 32, 32, 1),                                         \
       cost(0.21, 1080, 3200), no_cost(), cost(0.185, 864, 1860))                                          \
  TILE(32x32, kAll, kNone, kAll, kAll, 4, shape(32, 32, 16, 16, 64, 6),                                    \
       shape(32, 32, 16, 32, 64, 1), shape(32, 32, 16, 16, 64, 1),                                         \
       cost(0.095, 380, 500), no_cost(), cost(0.078, 650, 886))                                            \
  TILE(128x64d32, kNone, kNone, kNone, kCopiesToLds, 3, shape(128, 64, 64, 32, 32, 3),                     \
       no_shape(), no_shape(), no_cost(), no_cost(), cost(0.208, 780, 2050))                               \
  TILE(128x64x2, kNone, kAll, kNone, kNone, 1, shape(128, 64, 32, 64, 128, 3, 2),                          \
       no_shape(), shape(64, 64, 32, 64, 64, 3, 2), no_cost(), cost(0.442, 1350, 6200), no_cost())         \
  TILE(144x48x4, kNone, kAll, kNone, kNone, 1, shape(144, 48, 48, 48, 128, 3, 4),                          \
       no_shape(), shape(48, 48, 48, 48, 64, 3, 2), no_cost(), cost(0.443, 900, 9500), no_cost())

// Tiles of NVIDIA's warpgroups (pipelines/wgmma.h) for packed weights. A tile has 128 columns of Y.
// Columns:
//   name of the size
//   targets (kAll: NVIDIA, and the CPU with waves of 32 for tests)
//   rows of Y
//   clocks of a step of 64 indices k; clocks of a tile before its first step and after its last
// The clocks are fitted to an H200 with 4 bits.
#define GEMM_WARPGROUP_TILES(TILE)              \
  TILE(256x128, kCopiesToLds, 256, 1815, 11500) \
  TILE(128x128, kAll,         128, 1670, 5700)

// Tiles of NVIDIA's warpgroups for int8. A warpgroup computes 64 rows.
// Columns: size; targets (kAll: NVIDIA, and the CPU with waves of 32 for tests); rows and columns; steps of 128 bytes
// of K in LDS; occupancy, in work-groups; clocks of a step with many tiles, of a step if the compute unit has no other
// tile, and of a tile before its first step and after its last, fitted to an H200.
#define GEMM_INTEGER_WARPGROUP_TILES(TILE)                      \
  TILE(128x128, kCopiesToLds, 128, 128, 3, 2, 1520, 1520, 2500) \
  TILE(64x64,   kAll,         64,  64,  4, 3, 400,  900,  800)

// clang-format on

// All tiles, for tests and tuning to choose from. The macros for rows paste names, as templates cannot.
#define GEMM_TILE(name, type, ...) k##name##_##type,
#define GEMM_ALIGNED_TILE(name, ...) kAligned##name,
#define GEMM_WARPGROUP_TILE(name, ...) kWarpgroup##name,
#define GEMM_INTEGER_WARPGROUP_TILE(name, ...) kIntegerWarpgroup##name,
enum class GemmTile {
  GEMM_VECTOR_TILES(GEMM_TILE) GEMM_VECTOR_F16_TILES(GEMM_TILE) GEMM_STRIDED_TILES(GEMM_TILE)
      GEMM_ALIGNED_TILES(GEMM_ALIGNED_TILE) GEMM_WARPGROUP_TILES(GEMM_WARPGROUP_TILE)
          GEMM_INTEGER_WARPGROUP_TILES(GEMM_INTEGER_WARPGROUP_TILE)
};

struct VectorTile {
  GemmTile tile;
  const char* name;
  const char* type;
  int winograd_groups_per_unit;
  VectorShape shape;
  double fraction_of_peak;

  constexpr bool half() const { return type[1] == '1'; }
};
#define GEMM_ROW(name, type, ...) {GemmTile::k##name##_##type, #name, #type, __VA_ARGS__},
constexpr VectorTile kVectorTiles[] = {GEMM_VECTOR_TILES(GEMM_ROW) GEMM_VECTOR_F16_TILES(GEMM_ROW)};

struct StridedTile {
  GemmTile tile;
  const char* name;
  const char* type;
  int winograd_groups_per_unit;
  MatrixShape copies_to_lds, wave64, wave32;
  int busy_groups, flops_per_clock;  // for Winograd's planner

  constexpr const MatrixShape& shape(int wave, bool copies = false) const {
    return copies ? copies_to_lds : wave == 64 ? wave64 : wave32;
  }
};
constexpr StridedTile kStridedTiles[] = {GEMM_STRIDED_TILES(GEMM_ROW)};

struct AlignedTile {
  GemmTile tile;
  const char* name;
  Targets dense_kernels, halo_kernels, packed_kernels, int8_kernels;
  int groups_per_unit;  // work-groups at once on an NVIDIA compute unit
  MatrixShape copies_to_lds, wave64, wave32;
  TileCost dense_cost, halo_cost, int8_cost;

  constexpr const MatrixShape& shape(int wave, bool copies) const {
    return copies ? copies_to_lds : wave == 64 ? wave64 : wave32;
  }
};
#define GEMM_ALIGNED_ROW(name, dense, halo, packed, int8, ...)             \
  {GemmTile::kAligned##name, #name,         Targets::dense, Targets::halo, \
   Targets::packed,          Targets::int8, __VA_ARGS__},
constexpr AlignedTile kAlignedTiles[] = {GEMM_ALIGNED_TILES(GEMM_ALIGNED_ROW)};

struct WarpgroupTile {
  GemmTile tile;
  const char* name;
  Targets targets;
  int rows;
  double step, overhead;
};
#define GEMM_WARPGROUP_ROW(name, targets, ...) \
  {GemmTile::kWarpgroup##name, #name, Targets::targets, __VA_ARGS__},
constexpr WarpgroupTile kWarpgroupTiles[] = {GEMM_WARPGROUP_TILES(GEMM_WARPGROUP_ROW)};

struct IntegerWarpgroupTile {
  GemmTile tile;
  const char* name;
  Targets targets;
  int m, n, stages, groups_per_unit;
  double step, lone_step, overhead;

  constexpr int threads() const { return 2 * m; }
  // `adds`: with LDS for residuals.
  constexpr int lds_bytes(bool adds) const {
    return stages * 128 * (m + n) + (adds ? (stages - 1) * m * n : 0);
  }
};
#define GEMM_INTEGER_WARPGROUP_ROW(name, targets, ...) \
  {GemmTile::kIntegerWarpgroup##name, #name, Targets::targets, __VA_ARGS__},
constexpr IntegerWarpgroupTile kIntegerWarpgroupTiles[] = {
    GEMM_INTEGER_WARPGROUP_TILES(GEMM_INTEGER_WARPGROUP_ROW)};

// The costs of aligned tiles on AMD, counted in the machine code for gfx942 and gfx1100, not measured
// (docs/measurements/gpu_tiles_amd.md). Columns: mfma (waves of 64), wmma (waves of 32).
struct CountedCost {
  GemmTile tile;
  TileCost wave64, wave32;
};
constexpr CountedCost kCountedCosts[] = {
    {GemmTile::kAligned128x128, cost(0.84, 1330, 1790), cost(0.93, 2550, 1790)},
    {GemmTile::kAligned128x64, cost(0.56, 1530, 1150), cost(0.94, 1470, 960)},
    {GemmTile::kAligned64x64, cost(0.57, 1040, 640), cost(0.91, 890, 510)},
    {GemmTile::kAligned32x32, cost(0.37, 850, 220), cost(0.80, 750, 220)},
};

// Returns the row of a tile, which must be in the table. GemmTile has the order of the tables and of their rows.
template <class Row, int kRows>
constexpr const Row& row_of(const Row (&rows)[kRows], GemmTile tile) {
  return rows[static_cast<int>(tile) - static_cast<int>(rows[0].tile)];
}
template <class Row, int kRows>
constexpr bool has_row(const Row (&rows)[kRows], GemmTile tile) {
  return tile >= rows[0].tile && tile <= rows[kRows - 1].tile;
}

}  // namespace graphopt::hip
