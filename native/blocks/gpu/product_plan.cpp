#include "blocks/gpu/product_plan.h"

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

}  // namespace

TileOfProduct choose_tile(int64_t M, int64_t N, int64_t batch, bool half, const DeviceFacts& device,
                          std::optional<ProductTile> wanted) {
  const Architecture& arch = architecture(device.arch);
  if (half && arch.matrix == hip::Matrix::kNone) return tile_of(ProductTile::kVector, half, arch);
  if (wanted == ProductTile::kVector && arch.matrix != hip::Matrix::kEmulated) wanted.reset();
  if (wanted) return tile_of(*wanted, half, arch);
  // The large tile needs half the bandwidth, and enough work-groups for all compute units.
  const TileOfProduct large = tile_of(ProductTile::kLarge, half, arch);
  const bool fills = divide_up(M, large.m) * divide_up(N, large.n) * batch >= device.compute_units;
  return M > large.m / 2 && N > large.n / 2 && fills ? large : tile_of(ProductTile::kSmall, half, arch);
}

}  // namespace graphopt::gpu
