// Selects the tile of a GEMM on a GPU and the grid of tiles.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "device/launch.h"
#include "gemm/tiles.h"

namespace graphopt::gpu {

using hip::GemmTile;

// Returns whether a target has the kernels that copy to LDS directly or use warpgroups, unless their tile is for NVIDIA
// only: NVIDIA, and the CPU with waves of 32 for tests.
inline bool has_nvidia_kernels(const Architecture& arch) {
  return arch.matrix == hip::Matrix::kMma || (arch.matrix == hip::Matrix::kEmulated && arch.wave == 32);
}

// The tile of a GEMM with operands of any layout.
struct StridedTiling {
  GemmTile tile;
  const char *size, *type;
  int64_t m, n;
  uint32_t threads;

  // Returns the name of the tile's kernel in the family `prefix`.
  const char* kernel(const char* prefix) const { return kernel_name({prefix, size, "_", type}); }
};
// Selects the largest tile that gives each compute unit at least one work-group, for a batch of GEMMs of size [M, N].
// `wanted`: a tile to select instead, if it is in the tables for this type and device; for tests and tuning.
StridedTiling choose_strided(int64_t M, int64_t N, int64_t batch, bool half, const DeviceFacts& device,
                             std::optional<GemmTile> wanted);

// The tiles of a float16 GEMM with operands in aligned packs of 16 bytes (GEMM_ALIGNED_TILES): `down` rows of
// `across` tiles. K is split into `splits` parts of `depth` indices each.
struct AlignedTiling {
  GemmTile tile;
  const char* size;
  hip::MatrixShape shape;
  uint32_t threads;
  int64_t down, across, splits, depth;
  double clocks;  // estimated clocks of the busiest compute unit, from GEMM_ALIGNED_TILES

  // Returns the name of the tile's kernel in the family `prefix`.
  const char* kernel(const char* prefix) const { return kernel_name({prefix, size, "_f16"}); }
  // Returns the number of tiles of one split.
  int64_t tiles() const { return down * across; }
  // Returns the bytes of LDS that the launch must request: 0 except on NVIDIA, where LARGE_SHARED
  // (device/platform.h) is dynamic.
  uint32_t lds(bool right_by_k, const DeviceFacts& device) const;
};
constexpr int64_t kMaxSplits = 16;
constexpr double kClocksOfLaunch = 4000;  // clocks that one more launch takes

// A function of a tile, its shape on the device, and whether the device copies from memory to LDS without registers.
// Returns the cost of the tile on this device, or nothing if the tile has no kernel there.
using CostOfTile =
    std::function<std::optional<hip::TileCost>(const hip::AlignedTile&, const hip::MatrixShape&, bool)>;
// The CostOfTile of kernels for operands of dense.h and im2col.h.
std::optional<hip::TileCost> dense_cost(const hip::AlignedTile& tile, const hip::MatrixShape& shape,
                                        bool copies_to_lds);
// The CostOfTile of int8 kernels.
std::optional<hip::TileCost> int8_cost(const hip::AlignedTile& tile, const hip::MatrixShape& shape,
                                       bool copies_to_lds);

// Selects the tile and the number of splits with the lowest estimated clocks; on AMD see kMinGain (planner.cpp).
// Returns nothing for a device without float16 matrix units, or if `wanted` is a tile without a kernel there.
std::optional<AlignedTiling> choose_aligned(int64_t M, int64_t N, int64_t K, int64_t batch,
                                            const DeviceFacts& device, std::optional<GemmTile> wanted,
                                            int64_t max_splits = kMaxSplits,
                                            const CostOfTile& cost_of = dense_cost);

}  // namespace graphopt::gpu
