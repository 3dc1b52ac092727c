#include <algorithm>

#include "gemm/splits.h"
#include "operators/matmul/matmul_nbits/args.h"
#include "operators/matmul/matmul_nbits/op.h"

namespace graphopt::gpu {
namespace {

// Sets the arguments that all kernels share.
template <class Args>
void fill(Args& args, const NBitsProblem& p, bool half) {
  const int64_t blocks = divide_up(p.K, p.size);
  const int64_t zero_point_bits = !p.has_zero_points ? 0 : p.packed_zero_points ? p.bits : half ? 16 : 32;
  args.a = input(0);
  args.b = input(1);
  args.scales = input(2);
  args.zero_points = p.has_zero_points ? input(3) : input(2);
  args.bias = p.has_bias ? input(5) : no_buffer();
  args.y = output(0);
  // In float16, -1024 is 0xe400, and 1024 + n for a small integer n is 0x6400 | n.
  const hip::ZeroPointFormat zero_point = zero_point_bits >= 16 ? hip::ZeroPointFormat{0xffff, 0, 0xe400e400}
                                          : zero_point_bits > 0
                                              ? hip::ZeroPointFormat{(1u << p.bits) - 1, 0x6400, 0}
                                              : hip::ZeroPointFormat{0, 0x6400 | 1u << (p.bits - 1), 0};
  args.weights = {to_i31(blocks * p.size * p.bits / 8),
                  to_i31(divide_up(blocks * zero_point_bits, 8)),
                  static_cast<int32_t>(zero_point_bits),
                  to_i31(blocks),
                  make_divisor(p.size),
                  zero_point};
  args.M = to_i31(p.M);
  args.N = to_i31(p.N);
  args.K = to_i31(p.K);
}

hip::NBitsArgs vector_args(const NBitsProblem& p, bool half) {
  hip::NBitsArgs args = {};
  fill(args, p, half);
  args.g_idx = p.has_g_idx ? input(4) : no_buffer();
  args.bits = p.bits;
  return args;
}

// Returns whether rows of B consist of packs of 16 bytes.
bool has_packs(const NBitsProblem& p) { return divide_up(p.K, p.size) * p.size * p.bits / 8 % 16 == 0; }

Plan vector_plan(const NBitsProblem& p, bool half, bool aligned, int wave) {
  Plan plan;
  const bool many = p.M > 1, packs = aligned && !p.has_g_idx && p.K % 4 == 0 && has_packs(p);
  const int64_t rows = many ? hip::kNBitsManyRows : hip::kNBitsFewRows;
  const int64_t columns = many ? hip::kNBitsManyColumns : hip::kNBitsFewColumns;
  to_i31(rows * p.K);
  hip::NBitsArgs args = vector_args(p, half);
  const char* name = packs ? (many ? "matmul_nbits_packs_many" : "matmul_nbits_packs_few")
                           : (many ? "matmul_nbits_many" : "matmul_nbits_few");
  const int64_t row_tiles = divide_up(p.M, rows), group_columns = columns * (hip::kNBitsThreads / wave);
  for (int64_t first = 0; first < row_tiles; first += kMaxGrid) {
    args.a = Buffer{Role::kInput, 0, first * rows * p.K * (half ? 2 : 4)};
    args.y = Buffer{Role::kOutput, 0, first * rows * p.N * (half ? 2 : 4)};
    args.M = to_i31(p.M - first * rows);
    plan.launch(float_kernel(name, half),
                {to_u31(divide_up(p.N, group_columns)), to_u31(std::min(kMaxGrid, row_tiles - first))},
                hip::kNBitsThreads, args);
  }
  return plan;
}

// Returns whether the kernels on the matrix units support the layout. Rows of A and B must consist of packs of 16
// bytes. Rows of B must have less than 2^23 bytes (PackedLines::depend_on).
bool is_aligned(const NBitsProblem& p) {
  constexpr int64_t kMaxRowBytes = 1 << 23;
  const int64_t row_bytes = divide_up(p.K, p.size) * p.size * p.bits / 8;
  return !p.has_g_idx && p.K > 0 && p.K % 8 == 0 && has_packs(p) && row_bytes < kMaxRowBytes;
}

// Returns the number of blocks in a load of the kernel for few rows: 1 if a block consists of one or several loads,
// 0 if a load can contain a part of a block.
int64_t blocks_in_load(const NBitsProblem& p) {
  const int64_t elements = hip::row_elements(p.bits);
  if (p.size % elements == 0) return 1;
  return elements % p.size == 0 ? elements / p.size : 0;
}

// The work-groups of the kernel for few rows.
struct RowsGrid {
  int64_t waves = 1, tiles = 1, groups = 1;
};

// Selects the number of waves of a work-group, which split K, and its number of tiles of columns. The estimated time is
// the largest number of pairs of a tile and a slice of K that a wave streams. `sums`: bytes of LDS for a wave and a
// tile.
RowsGrid choose_rows_grid(const NBitsProblem& p, int64_t slices, int64_t max_waves, int64_t sums,
                          const DeviceFacts& device) {
  constexpr int64_t kItemsOnUnit = 512;  // work-items on a compute unit: each has enough registers
  constexpr int64_t kStart = 1;          // time until the first pair arrives
  constexpr int64_t kMaxLds = 32 << 10, kMaxLdsOfNvidia = 128 << 10;
  const bool nvidia = architecture(device.arch).matrix == hip::Matrix::kMma;
  const int64_t columns = divide_up(p.N, 16), waves_on_unit = kItemsOnUnit / device.wave;
  int64_t most_waves = 1;
  while (most_waves < std::min({slices, max_waves, waves_on_unit})) most_waves *= 2;
  RowsGrid best;
  int64_t least = INT64_MAX;
  for (int64_t waves = most_waves; waves >= 1; waves /= 2) {
    const int64_t units = device.compute_units * std::max<int64_t>(1, waves_on_unit / waves);
    const int64_t most =
        std::clamp<int64_t>((nvidia ? kMaxLdsOfNvidia : kMaxLds) / (waves * sums), 1, columns);
    for (int64_t tiles = 1; tiles <= most; ++tiles) {
      const int64_t groups = divide_up(columns, tiles);
      const int64_t time = divide_up(groups, units) * (tiles * divide_up(slices, waves) + kStart);
      if (time >= least) continue;
      least = time;
      best = {waves, tiles, groups};
    }
  }
  return best;
}

Plan rows_plan(const NBitsProblem& p, const DeviceFacts& device) {
  const bool nvidia = architecture(device.arch).matrix == hip::Matrix::kMma;
  const bool eight = p.M <= 8 && nvidia;
  const auto blocks = static_cast<int>(blocks_in_load(p));
  const int64_t max_threads = hip::row_threads(blocks);
  const std::string layout = std::to_string(p.bits) + "x" + std::to_string(blocks);
  const char* const name =
      kernel_name({eight ? "matmul_nbits_eight_rows_" : "matmul_nbits_rows_", layout, "_f16"});
  // As in rows.hip: the bytes of the sums of a wave and a tile, and the length of a slice of K.
  const int64_t sums = eight ? 512 : 1024;
  const int64_t slice = 4 * hip::row_elements(p.bits) * hip::row_loads(nvidia && !eight ? 2 : 1);
  const RowsGrid grid = choose_rows_grid(p, divide_up(p.K, slice), max_threads / device.wave, sums, device);
  hip::NBitsRowsArgs args = {};
  fill(args, p, true);
  args.waves = static_cast<int32_t>(grid.waves);
  args.tiles = static_cast<int32_t>(grid.tiles);
  Plan plan;
  plan.launch(name, {to_u31(grid.groups)}, static_cast<uint32_t>(grid.waves * device.wave), args).lds =
      static_cast<uint32_t>(grid.waves * grid.tiles * sums);
  return plan;
}

Plan gemm_plan(const NBitsProblem& p, const AlignedTiling& tiling, const DeviceFacts& device) {
  hip::NBitsGemmArgs args = {};
  fill(args, p, true);
  args.epilogue = {1, 0, p.N % 8 == 0, 0, {}};
  Plan plan;
  const char* prefix = p.bits == 2 ? "matmul_nbits_2_" : p.bits == 4 ? "matmul_nbits_4_" : "matmul_nbits_8_";
  launch_aligned(plan, tiling.kernel(prefix), tiling, 1, tiling.lds(false, device), args);
  return plan;
}

// The work-groups of a kernel for warpgroups.
struct WarpgroupGrid {
  const hip::WarpgroupTile* tile = nullptr;
  int64_t down = 0, across = 0;
  double clocks = 0;  // estimated clocks of the busiest compute unit
};

// Selects the tile with the fewest estimated clocks, or `wanted`. Returns no value if there is none for the problem.
std::optional<WarpgroupGrid> choose_warpgroups(const NBitsProblem& p, const DeviceFacts& device,
                                               std::optional<GemmTile> wanted) {
  const Architecture& arch = architecture(device.arch);
  const bool nvidia = arch.matrix == hip::Matrix::kMma;
  if (p.size % hip::kNBitsWarpgroupBlock != 0 || !has_nvidia_kernels(arch)) return std::nullopt;
  std::optional<WarpgroupGrid> best;
  for (const hip::WarpgroupTile& tile : hip::kWarpgroupTiles) {
    if (!hip::runs_on(tile.targets, nvidia) || (wanted && *wanted != tile.tile)) continue;
    WarpgroupGrid grid = {&tile, divide_up(p.M, tile.rows), divide_up(p.N, hip::kNBitsWarpgroupColumns), 0};
    const int64_t groups = divide_up(grid.down * grid.across, device.compute_units);
    const int64_t steps = divide_up(p.K, hip::kNBitsWarpgroupDepth);
    grid.clocks = static_cast<double>(groups) * (static_cast<double>(steps) * tile.step + tile.overhead);
    if (!best || grid.clocks < best->clocks) best = grid;
  }
  return best;
}

Plan warpgroup_plan(const NBitsProblem& p, const WarpgroupGrid& grid, const DeviceFacts& device) {
  hip::NBitsWarpgroupArgs args = {};
  fill(args, p, true);
  args.is_aligned = p.N % 8 == 0;
  args.down = make_divisor(grid.down);
  Plan plan;
  Launch& launch = plan.launch(
      kernel_name({"matmul_nbits_warpgroups_", std::to_string(p.bits) + "_", grid.tile->name, "_f16"}),
      {to_u31(grid.down * grid.across)}, hip::kNBitsWarpgroupThreads, args);
  if (architecture(device.arch).matrix == hip::Matrix::kMma) {
    launch.lds = static_cast<uint32_t>(hip::warpgroup_lds(grid.tile->rows, p.bits));
  }
  return plan;
}

// Plans a kernel on the matrix units. Returns no value if there is none for the problem.
std::optional<Plan> matrix_plan(const NBitsProblem& p, bool half, bool aligned, const DeviceFacts& device,
                                std::optional<GemmTile> wanted) {
  const hip::Matrix matrix = architecture(device.arch).matrix;
  if (!half || !aligned || !is_aligned(p) || matrix == hip::Matrix::kNone) return std::nullopt;
  if (p.M <= hip::kNBitsTileRows && blocks_in_load(p) > 0 && !wanted) return rows_plan(p, device);
  const auto cost_of = [](const hip::AlignedTile& tile, const hip::MatrixShape&, bool copies_to_lds) {
    return hip::runs_on(tile.packed_kernels, copies_to_lds) ? std::optional(tile.dense_cost) : std::nullopt;
  };
  const auto tiling = choose_aligned(p.M, p.N, p.K, 1, device, wanted, kMaxSplits, cost_of);
  const auto warpgroups = choose_warpgroups(p, device, wanted);
  if (warpgroups && (!tiling || warpgroups->clocks < tiling->clocks))
    return warpgroup_plan(p, *warpgroups, device);
  return tiling ? std::optional(gemm_plan(p, *tiling, device)) : std::nullopt;
}

}  // namespace

Plan matmul_nbits_plan(const NBitsProblem& p, bool half, bool aligned, const DeviceFacts& device,
                       std::optional<GemmTile> wanted) {
  if (p.M * p.N == 0) return {};
  const auto plan = matrix_plan(p, half, aligned, device, wanted);
  return plan ? *plan : vector_plan(p, half, aligned, device.wave);
}

bool wants_dequantized(const NBitsProblem& p, bool half, bool aligned, const DeviceFacts& device) {
  // The vector unit dequantizes B again for each tile of rows. From this number of rows on, this takes longer than
  // writing and reading the dequantized B once, as estimated from multiply-adds and bytes.
  constexpr int64_t kLeastRows = 33;
  constexpr int64_t kMostBytes = int64_t{512} << 20;  // of the dequantized B, which is in the workspace
  return p.M >= kLeastRows && p.K > 0 && p.N * p.K * (half ? 2 : 4) <= kMostBytes &&
         !matrix_plan(p, half, aligned, device, std::nullopt);
}

Plan dequantize_nbits_plan(const NBitsProblem& p, bool half, bool aligned) {
  if (p.N * p.K == 0) return {};
  hip::NBitsArgs args = vector_args(p, half);
  args.a = no_buffer();
  args.bias = no_buffer();
  args.packs = aligned && p.K % (half ? 8 : 4) == 0;
  Plan plan;
  plan.launch(float_kernel("dequantize_nbits", half), {to_u31(p.N)}, hip::kNBitsThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
