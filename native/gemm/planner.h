// The choice of a tile for a matrix product on a GPU, and how it cuts the product.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "device/launch.h"
#include "gemm/tiles.h"

namespace graphopt::gpu {

using hip::GemmTile;

// The names of a family's kernels, one for each row of a table: prefix, size, suffix.
template <class Row, size_t kRows>
class KernelNames {
 public:
  constexpr KernelNames(const Row (&rows)[kRows], const char* prefix, const char* suffix)
      : first_(rows[0].tile) {
    for (size_t i = 0; i < kRows; ++i) {
      size_t length = 0;
      for (const char* part : {prefix, rows[i].name, suffix}) {
        while (*part != 0) names_[i][length++] = *part++;
      }
    }
  }
  constexpr const char* operator[](GemmTile tile) const {
    return names_[static_cast<int>(tile) - static_cast<int>(first_)];
  }

 private:
  GemmTile first_;
  char names_[kRows][40] = {};
};

// Kernels with operands of any layout.
class StridedKernelNames {
 public:
  constexpr explicit StridedKernelNames(const char* prefix)
      : float_(hip::kVectorTiles, prefix, "_f32"),
        half_(hip::kVectorTiles, prefix, "_f16"),
        matrix_(hip::kStridedTiles, prefix, "_f16") {}
  constexpr const char* name(GemmTile tile, bool half) const {
    if (hip::has_row(hip::kStridedTiles, tile)) return matrix_[tile];
    return half ? half_[tile] : float_[tile];
  }

 private:
  KernelNames<hip::VectorTile, std::size(hip::kVectorTiles)> float_, half_;
  KernelNames<hip::StridedTile, std::size(hip::kStridedTiles)> matrix_;
};

// The part of a work-group in a GEMM with operands of any layout.
struct StridedTiling {
  GemmTile tile;
  int64_t m, n;
  uint32_t threads;
};
// The tile for `batch` products [M, N]. `wanted`: as gemm_plan (operators/matmul/matmul/op.h) takes it.
StridedTiling choose_strided(int64_t M, int64_t N, int64_t batch, bool half, const DeviceFacts& device,
                             std::optional<GemmTile> wanted);

// The tiles of a float16 GEMM with operands in whole packs: `down` rows of `across` tiles; K in `splits` parts of
// `depth` each.
struct AlignedTiling {
  GemmTile tile;
  hip::MatrixShape shape;
  uint32_t threads;
  int64_t down, across, splits, depth;
  double clocks;  // of the busiest compute unit, by the cost of its tiles

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
