// How a product is cut into the tiles of product_tiles.h.
#pragma once

#include <optional>

#include "device/launch.h"

namespace graphopt::gpu {

// What a work-group multiplies. kVector: float16 on the vector unit, where there is no other, and on the CPU.
enum class ProductTile { kLarge, kSmall, kVector };

// A work-group's part of the product.
struct TileOfProduct {
  ProductTile tile;
  int64_t m, n;
  uint32_t threads;
};
// Of products [M, N], `batch` of them. `wanted`: as gemm_plan (operators/matmul/op.h) takes it.
TileOfProduct choose_tile(int64_t M, int64_t N, int64_t batch, bool half, const DeviceFacts& device,
                          std::optional<ProductTile> wanted);

}  // namespace graphopt::gpu
