#include "gemm/planner.h"

#include <algorithm>
#include <vector>

namespace graphopt::gpu {
namespace {

// Estimates the clocks of the busiest compute unit: the work of all its tiles, or the steps of one tile if these take
// longer, plus the reduction of split K.
double estimate_clocks(const AlignedTiling& p, const hip::TileCost& cost, int64_t M, int64_t N, int64_t batch,
                       const DeviceFacts& device, const Architecture& arch) {
  const auto groups = static_cast<double>(divide_up(p.tiles() * batch * p.splits, device.compute_units));
  const double multiply_adds = 1.0 * p.shape.m * p.shape.n * static_cast<double>(p.depth);
  const double steps = static_cast<double>(divide_up(p.depth, p.shape.depth));
  double clocks =
      std::max(groups * (2 * multiply_adds / (arch.matrix_flops * cost.fraction_of_peak) + cost.overhead),
               steps * cost.step);
  if (p.splits > 1) {
    const double bytes = static_cast<double>((2 * p.splits * 4 + 2) * M * N * batch);
    clocks += kClocksOfLaunch + bytes / device.bytes_per_second * device.clock_hz;
  }
  return clocks;
}

// The clocks from the start of a launch to its first operands, and from its last sums to its end: twice the latency of
// memory in tests/hip/inner_loops.py.
constexpr double kClocksOfLatency = 1000;

// Returns the bytes that the L2 delivers to a compute unit per clock if all compute units read: white papers of CDNA 3
// (2 KiB for 38 compute units) and RDNA (1 KiB for 40).
double l2_bytes_per_clock(const Architecture& arch) { return arch.wave == 64 ? 54 : 25; }

constexpr const hip::CountedCost* counted_cost(GemmTile tile) {
  for (const hip::CountedCost& row : hip::kCountedCosts) {
    if (row.tile == tile) return &row;
  }
  return nullptr;
}

// Returns true if all tiles with kernels for AMD have counted costs. Halo kernels need copies to LDS, for which we have
// no AMD code.
constexpr bool are_all_counted() {
  for (const hip::AlignedTile& tile : hip::kAlignedTiles) {
    const bool on_amd = hip::runs_on(tile.dense_kernels, false) || hip::runs_on(tile.packed_kernels, false);
    if (on_amd && counted_cost(tile.tile) == nullptr) return false;
  }
  return true;
}
static_assert(are_all_counted(), "a tile with kernels for AMD needs a row in kCountedCosts (tiles.h)");

// Estimates the clocks of a launch on AMD from counted costs, or from the bytes of its operands if these take longer.
double estimate_clocks_on_amd(const AlignedTiling& p, int64_t M, int64_t N, int64_t K, int64_t batch,
                              const DeviceFacts& device, const Architecture& arch) {
  const hip::CountedCost& row = *counted_cost(p.tile);
  const hip::TileCost& cost = arch.wave == 64 ? row.wave64 : row.wave32;
  const int64_t groups = divide_up(p.tiles() * batch * p.splits, device.compute_units);
  const auto from_l2 = static_cast<double>(2 * groups * (p.shape.m + p.shape.n) * p.depth);
  const auto from_memory = static_cast<double>(2 * batch * (M * K + K * N + M * N));
  const double copies =
      std::max(from_l2 / l2_bytes_per_clock(arch), from_memory / device.bytes_per_second * device.clock_hz);
  return kClocksOfLatency + std::max(estimate_clocks(p, cost, M, N, batch, device, arch), copies);
}

// On AMD, the costs of an H200 select one tiling and the counted costs (kCountedCosts) another. The second tiling is
// used if the counted costs of the first are more than kMinGain times its own.
constexpr double kMinGain = 1.15;

// Returns the tiles for operands of any layout and this type, the largest first. With matrix units, these exclude the
// float16 tile of the vector unit, except on the CPU if a test asks for it by `wanted`.
std::vector<StridedTiling> strided_tilings(bool half, const Architecture& arch,
                                           std::optional<GemmTile> wanted) {
  const bool matrix = half && arch.matrix != hip::Matrix::kNone;
  std::vector<StridedTiling> tilings;
  for (const hip::StridedTile& t : hip::kStridedTiles) {
    const hip::MatrixShape& s = t.shape(arch.wave);
    if (matrix)
      tilings.push_back({t.tile, t.name, t.type, s.m, s.n, static_cast<uint32_t>(s.threads(arch.wave))});
  }
  for (const hip::VectorTile& t : hip::kVectorTiles) {
    const bool tested = arch.matrix == hip::Matrix::kEmulated && wanted == t.tile;
    if (half != t.half() || (matrix && !tested)) continue;
    tilings.push_back(
        {t.tile, t.name, t.type, t.shape.m, t.shape.n, static_cast<uint32_t>(t.shape.threads())});
  }
  return tilings;
}

}  // namespace

StridedTiling choose_strided(int64_t M, int64_t N, int64_t batch, bool half, const DeviceFacts& device,
                             std::optional<GemmTile> wanted) {
  const auto tilings = strided_tilings(half, architecture(device.arch), wanted);
  for (const StridedTiling& t : tilings) {
    if (wanted == t.tile) return t;
  }
  // A large tile needs less bandwidth, but must leave enough work-groups for all compute units.
  for (const StridedTiling& t : tilings) {
    const bool fills_device = divide_up(M, t.m) * divide_up(N, t.n) * batch >= device.compute_units;
    if (M > t.m / 2 && N > t.n / 2 && fills_device) return t;
  }
  return tilings.back();
}

uint32_t AlignedTiling::lds(bool right_by_k, const DeviceFacts& device) const {
  return architecture(device.arch).matrix == hip::Matrix::kMma
             ? static_cast<uint32_t>(shape.lds_bytes(right_by_k))
             : 0;
}

std::optional<hip::TileCost> dense_cost(const hip::AlignedTile& tile, const hip::MatrixShape&,
                                        bool copies_to_lds) {
  if (!hip::runs_on(tile.dense_kernels, copies_to_lds)) return std::nullopt;
  return tile.dense_cost;
}

std::optional<hip::TileCost> int8_cost(const hip::AlignedTile& tile, const hip::MatrixShape&,
                                       bool copies_to_lds) {
  if (!hip::runs_on(tile.int8_kernels, copies_to_lds)) return std::nullopt;
  return copies_to_lds ? tile.int8_cost : tile.dense_cost;
}

std::optional<AlignedTiling> choose_aligned(int64_t M, int64_t N, int64_t K, int64_t batch,
                                            const DeviceFacts& device, std::optional<GemmTile> wanted,
                                            int64_t max_splits, const CostOfTile& cost_of) {
  const Architecture& arch = architecture(device.arch);
  if (arch.matrix == hip::Matrix::kNone || (wanted && !hip::has_row(hip::kAlignedTiles, *wanted)))
    return std::nullopt;
  std::optional<AlignedTiling> best, best_on_amd;
  double fewest_on_amd = 0;
  const bool copies_to_lds = arch.matrix == hip::Matrix::kMma;
  const bool is_amd = !copies_to_lds && arch.matrix != hip::Matrix::kEmulated;
  const auto clocks_on_amd = [&](const AlignedTiling& p) {
    return estimate_clocks_on_amd(p, M, N, K, batch, device, arch);
  };
  for (const hip::AlignedTile& tile : hip::kAlignedTiles) {
    if (wanted && *wanted != tile.tile) continue;
    const hip::MatrixShape& shape = tile.shape(arch.wave, copies_to_lds);
    if (shape.m == 0) continue;
    const auto cost = cost_of(tile, shape, copies_to_lds);
    if (!cost) continue;
    AlignedTiling p = {tile.tile, tile.name, shape, static_cast<uint32_t>(shape.threads(arch.wave)), 0, 0,
                       1,         0,         0};
    p.down = divide_up(M, shape.m);
    p.across = divide_up(N, shape.n);
    for (int64_t splits = 1; splits <= max_splits; ++splits) {
      // Each split has at least two steps.
      p.depth = round_up(divide_up(K, splits), shape.depth);
      if (splits > 1 && (p.depth < 2 * shape.depth || p.tiles() * batch >= device.compute_units)) break;
      p.splits = std::max<int64_t>(1, divide_up(K, p.depth));
      p.clocks = estimate_clocks(p, *cost, M, N, batch, device, arch);
      if (!best || p.clocks < best->clocks) best = p;
      if (!is_amd) continue;
      const double clocks = clocks_on_amd(p);
      if (best_on_amd && clocks >= fewest_on_amd) continue;
      best_on_amd = p;
      fewest_on_amd = clocks;
    }
  }
  return best_on_amd && clocks_on_amd(*best) > kMinGain * fewest_on_amd ? best_on_amd : best;
}

}  // namespace graphopt::gpu
