// The tiles of products, for the kernels and for their launch plans.
#pragma once

namespace graphopt::hip {

// How sgemm.h cuts a product: m x n for a work-group, rows x columns for a work-item of the vector unit,
// wave_m x wave_n for a wave of 64 of the matrix units.
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

// How float16 products on the matrix units are cut: the side x side of a work-group into parts of side / 2 rows
// and this many columns, one for each wave. The sums of 64 columns are 128 registers of a wave of 32, which
// leaves too few for the operands of RDNA 3.
constexpr int product_columns(int wave) { return wave == 64 ? 64 : 32; }
constexpr int product_waves(int side, int wave) { return 2 * side / product_columns(wave); }

// How float16 products of whole packs (panels.h) are cut: m x n for a work-group, wave_m x wave_n for
// a wave; `depth` of k in a step, of which LDS holds `buffers`. Each of several `teams` has waves for the whole tile, and
// its part of the k of a step.
struct PanelShape {
  int m, n, wave_m, wave_n, depth, buffers;
  int teams = 1;
  constexpr int threads(int wave) const { return teams * (m / wave_m) * (n / wave_n) * wave; }
  // Rows lie in different banks.
  constexpr int lds_bytes(bool right_by_k) const {
    return buffers * 2 * (m * (depth + 8) + (right_by_k ? depth * (n + 8) : n * (depth + 8)));
  }
};
enum class PanelTile {
  kWide,
  kSquare,
  kBroad,
  kOblong,
  kFlat,
  kLow,
  kLarge,
  kTall,
  kMedium,
  kSmall,
  kNarrow,
  kSlim
};
// `copies`: memory reaches LDS without passing through registers (kCopiesToLds): several steps are on their way
// at a time, and a wave has the registers for parts of 64 x 64. kNarrow and kSlim are of convolutions/halo.hip alone.
constexpr PanelShape panel_shape(PanelTile tile, int wave, bool copies) {
  const int columns = copies ? 64 : product_columns(wave);
  const int depth = copies ? 64 : 32, buffers = copies ? 3 : 2;
  // Steps of 64 through registers are too many registers for RDNA.
  const int few = copies || wave == 64 ? 64 : 32;
  return tile == PanelTile::kWide     ? PanelShape{128, copies ? 256 : 128, 64, columns, depth, buffers}
         : tile == PanelTile::kSquare ? PanelShape{192, 192, 48, 96, depth, buffers}
         : tile == PanelTile::kBroad  ? PanelShape{192, 160, 48, 80, depth, buffers}
         : tile == PanelTile::kOblong ? PanelShape{192, 128, 48, 64, depth, buffers}
         : tile == PanelTile::kFlat   ? PanelShape{128, 160, 32, 80, depth, buffers}
         : tile == PanelTile::kLow    ? PanelShape{96, 128, 48, 32, depth, buffers}
         : tile == PanelTile::kLarge  ? PanelShape{128, 128, 64, columns, depth, buffers}
         : tile == PanelTile::kTall   ? PanelShape{128, 64, 64, 32, few, copies ? 4 : 2}
         : tile == PanelTile::kMedium ? PanelShape{64, 64, 32, 32, few, copies ? 4 : 2}
         : tile == PanelTile::kNarrow ? PanelShape{copies ? 128 : 64, 64, 32, 64, 2 * depth, 3, 2}
         : tile == PanelTile::kSlim ? PanelShape{copies ? 144 : 48, 48, 48, 48, 2 * depth, 3, copies ? 4 : 2}
                                    : PanelShape{32, 32, 16, wave == 64 ? 32 : 16, 64, copies ? 6 : 2};
}

}  // namespace graphopt::hip
