// The choice of a tile for a matrix product on a GPU, and how it cuts the product.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "device/launch.h"
#include "gemm/tiles.h"

namespace graphopt::gpu {

using hip::GemmTile;

// The part of a work-group in a GEMM with operands of any layout.
struct StridedTiling {
  GemmTile tile;
  const char *size, *type;
  int64_t m, n;
  uint32_t threads;

  // That of a family with this prefix.
  const char* kernel(const char* prefix) const { return kernel_name({prefix, size, "_", type}); }
};
// The tile for `batch` products [M, N]. `wanted`: as gemm_plan (operators/matmul/matmul/op.h) takes it.
StridedTiling choose_strided(int64_t M, int64_t N, int64_t batch, bool half, const DeviceFacts& device,
                             std::optional<GemmTile> wanted);

// The tiles of a float16 GEMM with operands in whole packs: `down` rows of `across` tiles; K in `splits` parts of
// `depth` each.
struct AlignedTiling {
  GemmTile tile;
  const char* size;
  hip::MatrixShape shape;
  uint32_t threads;
  int64_t down, across, splits, depth;
  double clocks;  // of the busiest compute unit, by the cost of its tiles

  // That of a family with this prefix.
  const char* kernel(const char* prefix) const { return kernel_name({prefix, size, "_f16"}); }
  // Tiles of one part.
  int64_t tiles() const { return down * across; }
  // The bytes of LDS that the launch requests: only where a work-group may have more than a kernel declares
  // (device/platform.h, LARGE_SHARED).
  uint32_t lds(bool right_by_k, const DeviceFacts& device) const;
};
constexpr int64_t kMostSplits = 16;
constexpr double kClocksOfLaunch = 4000;

// The cost of a tile that this device has the shape of; nothing where there is no kernel.
using CostOfTile =
    std::function<std::optional<hip::TileCost>(const hip::AlignedTile&, const hip::MatrixShape&)>;
std::optional<hip::TileCost> dense_cost(const hip::AlignedTile& tile, const hip::MatrixShape& shape);

// The cheapest tile and number of splits; nothing for a device without float16 matrix units, or where a tile of another
// table is wanted.
std::optional<AlignedTiling> choose_aligned(int64_t M, int64_t N, int64_t K, int64_t batch,
                                            const DeviceFacts& device, std::optional<GemmTile> wanted,
                                            int64_t most_splits = kMostSplits,
                                            const CostOfTile& cost_of = dense_cost);

}  // namespace graphopt::gpu
