// The tiles of products, for the kernels and for their launch plans.
#pragma once

namespace graphopt::hip {

// Of sgemm.h: m x n for a work-group, rows x columns for a work-item of the vector unit, wave_m x wave_n for
// a wave of 64 of the matrix units.
struct SgemmShape {
  int m, n, rows, columns, wave_m, wave_n;
  constexpr int threads() const { return m * n / (rows * columns); }
};
enum class SgemmTile { kLarge, kWide, kSmall };
constexpr SgemmShape sgemm_shape(SgemmTile tile) {
  return tile == SgemmTile::kLarge  ? SgemmShape{128, 128, 8, 8, 64, 64}
         : tile == SgemmTile::kWide ? SgemmShape{64, 128, 8, 8, 64, 64}
                                    : SgemmShape{64, 32, 4, 4, 32, 32};
}
// Every step of such a product divides it.
constexpr int kSgemmDepth = 16;

// Of the float16 products on the matrix units: a work-group of side x side is cut into parts of side / 2 rows
// and this many columns, one for each wave. The sums of 64 columns are 128 registers of a wave of 32, which
// leaves too few for the operands of RDNA 3.
constexpr int product_columns(int wave) { return wave == 64 ? 64 : 32; }
constexpr int product_waves(int side, int wave) { return 2 * side / product_columns(wave); }

}  // namespace graphopt::hip
