#include "blocks/gpu/product_plan.h"

#include <algorithm>
#include <utility>

#include "blocks/gpu/product_shape.h"

namespace graphopt::gpu {
namespace {

TileOfProduct tile_of(ProductTile tile, bool half, const Architecture& arch) {
  const bool large = tile == ProductTile::kLarge;
  if (half && tile != ProductTile::kVector) {
    const int side = large ? 128 : 64;
    return {tile, side, side, static_cast<uint32_t>(hip::product_waves(side, arch.wave) * arch.wave)};
  }
  const hip::SgemmShape s = hip::sgemm_shape(half    ? hip::SgemmTile::kWide
                                             : large ? hip::SgemmTile::kLarge
                                                     : hip::SgemmTile::kSmall);
  return {tile, s.m, s.n, static_cast<uint32_t>(s.threads())};
}

// Clocks of the busiest compute unit.
double clocks_of(const PanelsOfProduct& p, const PanelCost& cost, int64_t M, int64_t N, int64_t batch,
                 const DeviceFacts& device, const Architecture& arch) {
  const auto groups = static_cast<double>(divide_up(p.tiles() * batch * p.splits, device.compute_units));
  const double products = 1.0 * p.shape.m * p.shape.n * static_cast<double>(p.depth);
  const double steps = static_cast<double>(divide_up(p.depth, p.shape.depth));
  double clocks = std::max(groups * (2 * products / (arch.matrix_flops * cost.part_of_peak) + cost.ends),
                           steps * cost.step);
  if (p.splits > 1) {
    const double bytes = static_cast<double>((2 * p.splits * 4 + 2) * M * N * batch);
    clocks += kClocksOfLaunch + bytes / device.bytes_per_second * device.clock_hz;
  }
  return clocks;
}

}  // namespace

uint32_t PanelsOfProduct::lds(bool right_by_k, const DeviceFacts& device) const {
  return architecture(device.arch).matrix == hip::Matrix::kMma
             ? static_cast<uint32_t>(shape.lds_bytes(right_by_k))
             : 0;
}

// Fitted to an H200 (scripts/gpu_bench.py --tiles); on AMD, where nobody has measured, the same, with the rate of its
// units.
std::optional<PanelCost> cost_of_panels(hip::PanelTile tile, const hip::PanelShape&,
                                        const DeviceFacts& device) {
  // The others are too large for operands that pass through registers.
  if (tile < hip::PanelTile::kLarge && architecture(device.arch).matrix != hip::Matrix::kMma)
    return std::nullopt;
  switch (tile) {
    case hip::PanelTile::kWide:
      return PanelCost{0.50, 1340, 8800};
    case hip::PanelTile::kSquare:
      return PanelCost{0.48, 1260, 15200};
    case hip::PanelTile::kBroad:
      return PanelCost{0.48, 1100, 11000};
    case hip::PanelTile::kOblong:
      return PanelCost{0.45, 900, 9000};
    case hip::PanelTile::kFlat:
      return PanelCost{0.47, 900, 9000};
    case hip::PanelTile::kLow:
      return PanelCost{0.36, 800, 8000};
    case hip::PanelTile::kLarge:
      return PanelCost{0.324, 1500, 6300};
    case hip::PanelTile::kTall:
      return PanelCost{0.238, 670, 4200};
    case hip::PanelTile::kMedium:
      return PanelCost{0.21, 1080, 3200};
    case hip::PanelTile::kSmall:
      return PanelCost{0.095, 380, 500};
    default:  // of convolutions alone
      return std::nullopt;
  }
}

std::optional<PanelsOfProduct> choose_panels(int64_t M, int64_t N, int64_t K, int64_t batch,
                                             const DeviceFacts& device, std::optional<ProductTile> wanted,
                                             int64_t most_splits, const CostOfPanels& cost_of) {
  const Architecture& arch = architecture(device.arch);
  if (arch.matrix == hip::Matrix::kNone || (wanted && *wanted < ProductTile::kPanelsWide))
    return std::nullopt;
  const bool copies = arch.matrix == hip::Matrix::kMma;
  std::optional<PanelsOfProduct> best;
  for (const auto& [as, tile] : {std::pair(ProductTile::kPanelsWide, hip::PanelTile::kWide),
                                 {ProductTile::kPanelsSquare, hip::PanelTile::kSquare},
                                 {ProductTile::kPanelsBroad, hip::PanelTile::kBroad},
                                 {ProductTile::kPanelsOblong, hip::PanelTile::kOblong},
                                 {ProductTile::kPanelsFlat, hip::PanelTile::kFlat},
                                 {ProductTile::kPanelsLow, hip::PanelTile::kLow},
                                 {ProductTile::kPanelsLarge, hip::PanelTile::kLarge},
                                 {ProductTile::kPanelsTall, hip::PanelTile::kTall},
                                 {ProductTile::kPanelsMedium, hip::PanelTile::kMedium},
                                 {ProductTile::kPanelsSmall, hip::PanelTile::kSmall},
                                 {ProductTile::kPanelsNarrow, hip::PanelTile::kNarrow},
                                 {ProductTile::kPanelsSlim, hip::PanelTile::kSlim}}) {
    if (wanted && *wanted != as) continue;
    const hip::PanelShape shape = hip::panel_shape(tile, arch.wave, copies);
    const auto cost = cost_of(tile, shape, device);
    if (!cost) continue;
    PanelsOfProduct p = {tile, shape, 0, 0, 0, 1, 0, 0};
    p.threads = static_cast<uint32_t>(p.shape.threads(arch.wave));
    p.down = divide_up(M, p.shape.m);
    p.across = divide_up(N, p.shape.n);
    for (int64_t splits = 1; splits <= most_splits; ++splits) {
      // A part has two steps at least.
      p.depth = round_up(divide_up(K, splits), p.shape.depth);
      if (splits > 1 && (p.depth < 2 * p.shape.depth || p.tiles() * batch >= device.compute_units)) break;
      p.splits = std::max<int64_t>(1, divide_up(K, p.depth));
      p.clocks = clocks_of(p, *cost, M, N, batch, device, arch);
      if (!best || p.clocks < best->clocks) best = p;
    }
  }
  return best;
}

TileOfProduct choose_tile(int64_t M, int64_t N, int64_t batch, bool half, const DeviceFacts& device,
                          std::optional<ProductTile> wanted) {
  const Architecture& arch = architecture(device.arch);
  if (half && arch.matrix == hip::Matrix::kNone) return tile_of(ProductTile::kVector, half, arch);
  if (wanted == ProductTile::kVector && arch.matrix != hip::Matrix::kEmulated) wanted.reset();
  if (wanted && *wanted < ProductTile::kPanelsWide) return tile_of(*wanted, half, arch);
  // The large tile needs half the bandwidth, and enough work-groups for all compute units.
  const TileOfProduct large = tile_of(ProductTile::kLarge, half, arch);
  const bool fills = divide_up(M, large.m) * divide_up(N, large.n) * batch >= device.compute_units;
  return M > large.m / 2 && N > large.n / 2 && fills ? large : tile_of(ProductTile::kSmall, half, arch);
}

}  // namespace graphopt::gpu
