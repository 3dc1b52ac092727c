// How a product is cut into the tiles of product_tiles.h.
#pragma once

#include <functional>
#include <optional>

#include "blocks/gpu/product_shape.h"
#include "device/launch.h"

namespace graphopt::gpu {

// What a work-group multiplies. kVector: float16 on the vector unit, where there is no other, and on the CPU. From
// kPanelsWide on: tiles of panels.h.
enum class ProductTile {
  kLarge,
  kSmall,
  kVector,
  kPanelsWide,
  kPanelsLarge,
  kPanelsTall,
  kPanelsMedium,
  kPanelsSmall,
  kPanelsSquare,
  kPanelsBroad,
  kPanelsOblong,
  kPanelsFlat,
  kPanelsLow,
  kPanelsNarrow,
  kPanelsSlim,
};

// A work-group's part of the product.
struct TileOfProduct {
  ProductTile tile;
  int64_t m, n;
  uint32_t threads;
};
// The tile for `batch` products [M, N]. `wanted`: as gemm_plan (operators/matmul/op.h) takes it.
TileOfProduct choose_tile(int64_t M, int64_t N, int64_t batch, bool half, const DeviceFacts& device,
                          std::optional<ProductTile> wanted);

// How a float16 product whose operands come in whole packs is cut: into which tiles, how many rows of them and how
// many in a row; K into how many parts, of how much each.
struct PanelsOfProduct {
  hip::PanelTile tile;
  hip::PanelShape shape;
  uint32_t threads;
  int64_t down, across, splits, depth;
  double clocks;  // of the busiest compute unit, by the cost of its tiles

  // Tiles of one part.
  int64_t tiles() const { return down * across; }
  // The bytes of LDS that the launch asks for: only where a work-group may have more than a kernel declares
  // (device/platform.h, LARGE_SHARED).
  uint32_t lds(bool right_by_k, const DeviceFacts& device) const;
};
constexpr int64_t kMostSplits = 16;

// What a tile costs a compute unit.
struct PanelCost {
  double part_of_peak;  // of the matrix units, that many such tiles reach together
  double step;          // clocks from one step of a tile to the next, at least
  double ends;          // clocks before the first step and behind the last
};
constexpr double kClocksOfLaunch = 4000;
// Of the kernels of panels.h; nothing for a tile that the device has none of.
std::optional<PanelCost> cost_of_panels(hip::PanelTile tile, const hip::PanelShape& shape,
                                        const DeviceFacts& device);

using CostOfPanels =
    std::function<std::optional<PanelCost>(hip::PanelTile, const hip::PanelShape&, const DeviceFacts&)>;
// Nothing for a device whose matrix units take no float16, and where another tile is wanted.
std::optional<PanelsOfProduct> choose_panels(int64_t M, int64_t N, int64_t K, int64_t batch,
                                             const DeviceFacts& device, std::optional<ProductTile> wanted,
                                             int64_t most_splits = kMostSplits,
                                             const CostOfPanels& cost_of = cost_of_panels);

}  // namespace graphopt::gpu
