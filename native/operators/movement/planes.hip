// Matrices of float16 transposed: tensors between channels first and channels last.
//
// Bound by memory: each element is read once and written once, 16 bytes a work-item where rows and columns
// are whole packs. A tile goes through LDS, whose rows are an odd number of banks apart. Launch:
// operators/movement/plan.cpp.
#include "device/platform.h"
#include "operators/movement/planes_args.h"

namespace graphopt::hip {

template <int kRows, int kColumns>
struct PlanesTile {
  uint16_t v[kRows][kColumns + 2];
};

template <int kRows, int kColumns>
DEVICE void swap_planes(const SwapPlanesArgs& args, PlanesTile<kRows, kColumns>& tile) {
  struct alignas(16) Eight {
    uint16_t v[8];
  };
  // Packs of a row of the tile, and of a column.
  constexpr int kAcross = kColumns / 8, kDown = kRows / 8;
  const auto block = static_cast<uint32_t>(block_x());
  const uint32_t matrix = divide(block, args.tiles), in_matrix = block - matrix * args.tiles.d;
  const uint32_t down = divide(in_matrix, args.across);
  const int first_row = static_cast<int>(down) * kRows,
            first_column = static_cast<int>(in_matrix - down * args.across.d) * kColumns;
  const size_t begin =
      static_cast<size_t>(matrix) * static_cast<size_t>(args.rows) * static_cast<size_t>(args.columns);
  const uint16_t* const x = static_cast<const uint16_t*>(args.x) + begin;
  uint16_t* const y = static_cast<uint16_t*>(args.y) + begin;

  UNROLL for (int i = 0; i < kRows * kAcross; i += kPlanesThreads) {
    const int r = (i + thread_x()) / kAcross, eight = (i + thread_x()) % kAcross * 8;
    const int row = first_row + r, column = first_column + eight;
    Eight in = {};
    if (row < args.rows) {
      const uint16_t* const from = x + static_cast<ptrdiff_t>(row) * args.columns + column;
      if (args.packs_of_x != 0) {
        if (column < args.columns) in = *reinterpret_cast<const Eight*>(from);
      } else {
        UNROLL for (int j = 0; j < 8; ++j) in.v[j] =
            column + j < args.columns ? from[j] : static_cast<uint16_t>(0);
      }
    }
    UNROLL for (int j = 0; j < 8; ++j) tile.v[r][eight + j] = in.v[j];
  }
  barrier();
  UNROLL for (int i = 0; i < kColumns * kDown; i += kPlanesThreads) {
    const int c = (i + thread_x()) / kDown, eight = (i + thread_x()) % kDown * 8;
    const int column = first_column + c, row = first_row + eight;
    if (column >= args.columns) continue;
    Eight out;
    UNROLL for (int j = 0; j < 8; ++j) out.v[j] = tile.v[eight + j][c];
    uint16_t* const to = y + static_cast<ptrdiff_t>(column) * args.rows + row;
    if (args.packs_of_y != 0) {
      if (row < args.rows) *reinterpret_cast<Eight*>(to) = out;
    } else {
      UNROLL for (int j = 0; j < 8; ++j) {
        if (row + j < args.rows) to[j] = out.v[j];
      }
    }
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define SWAP_PLANES_KERNEL(rows, columns)                                              \
  KERNEL(swap_planes_##rows##x##columns##_b16, kPlanesThreads, SwapPlanesArgs, x, y) { \
    using Tile = PlanesTile<rows, columns>;                                            \
    SHARED(Tile, tile);                                                                \
    swap_planes(args, tile);                                                           \
  }

SWAP_PLANES_KERNEL(64, 64)
SWAP_PLANES_KERNEL(8, 512)
SWAP_PLANES_KERNEL(512, 8)
