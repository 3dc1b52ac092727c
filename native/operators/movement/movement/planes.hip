// Transposes matrices with elements of 2 and 4 bytes: for conversions between channels first and channels last, and
// for Transpose nodes that only transpose matrices.
//
// Bound by memory: each element is read once and written once, with 16 bytes per access if rows and columns
// are multiples of 16 bytes. A tile is transposed in LDS, where its rows are an odd number of banks apart.
// Launch: operators/movement/movement/plan.cpp.
#include "device/platform.h"
#include "operators/movement/movement/planes_args.h"

namespace graphopt::hip {

template <class T, int kRows, int kColumns>
struct PlanesTile {
  T v[kRows][kColumns + 4 / static_cast<int>(sizeof(T))];
};

template <class T, int kRows, int kColumns>
DEVICE void transpose(const TransposeArgs& args) {
  SHARED(tile, PlanesTile<T, kRows, kColumns>);
  constexpr int kSize = Pack<T>::kSize;
  // Number of packs in a row and in a column of the tile.
  constexpr int kAcross = kColumns / kSize, kDown = kRows / kSize;
  const auto block = static_cast<uint32_t>(block_x());
  const uint32_t matrix = divide(block, args.tiles), in_matrix = block - matrix * args.tiles.d;
  const uint32_t down = divide(in_matrix, args.across);
  const int first_row = static_cast<int>(down) * kRows,
            first_column = static_cast<int>(in_matrix - down * args.across.d) * kColumns;
  const size_t begin =
      static_cast<size_t>(matrix) * static_cast<size_t>(args.rows) * static_cast<size_t>(args.columns);
  const T* const x = static_cast<const T*>(args.x) + begin;
  T* const y = static_cast<T*>(args.y) + begin;

  UNROLL for (int i = 0; i < kRows * kAcross; i += kPlanesThreads) {
    const int r = (i + thread_x()) / kAcross, c = (i + thread_x()) % kAcross * kSize;
    const int row = first_row + r, column = first_column + c;
    Pack<T> in = {};
    if (row < args.rows) {
      const T* const from = x + static_cast<ptrdiff_t>(row) * args.columns + column;
      if (args.packs_of_x != 0) {
        if (column < args.columns) in = load_pack(from);
      } else {
        UNROLL for (int j = 0; j < kSize; ++j) {
          if (column + j < args.columns) in.v[j] = from[j];
        }
      }
    }
    UNROLL for (int j = 0; j < kSize; ++j) tile.v[r][c + j] = in.v[j];
  }
  barrier();
  UNROLL for (int i = 0; i < kColumns * kDown; i += kPlanesThreads) {
    const int c = (i + thread_x()) / kDown, r = (i + thread_x()) % kDown * kSize;
    const int column = first_column + c, row = first_row + r;
    if (column >= args.columns) continue;
    Pack<T> out;
    UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = tile.v[r + j][c];
    T* const to = y + static_cast<ptrdiff_t>(column) * args.rows + row;
    if (args.packs_of_y != 0) {
      if (row < args.rows) store_pack(to, out);
    } else {
      UNROLL for (int j = 0; j < kSize; ++j) {
        if (row + j < args.rows) to[j] = out.v[j];
      }
    }
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL_OF(transpose_planes_64x64_b16, (transpose<uint16_t, 64, 64>), kPlanesThreads, TransposeArgs, x, y)
KERNEL_OF(transpose_planes_8x512_b16, (transpose<uint16_t, 8, 512>), kPlanesThreads, TransposeArgs, x, y)
KERNEL_OF(transpose_planes_512x8_b16, (transpose<uint16_t, 512, 8>), kPlanesThreads, TransposeArgs, x, y)
KERNEL_OF(transpose_planes_64x64_b32, (transpose<uint32_t, 64, 64>), kPlanesThreads, TransposeArgs, x, y)
KERNEL_OF(transpose_planes_8x512_b32, (transpose<uint32_t, 8, 512>), kPlanesThreads, TransposeArgs, x, y)
KERNEL_OF(transpose_planes_512x8_b32, (transpose<uint32_t, 512, 8>), kPlanesThreads, TransposeArgs, x, y)
