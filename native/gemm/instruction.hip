// Products of one wave through instruction.h, nothing around them: how the tile of each architecture is tested on
// its own. No measure of speed: a wave alone on a compute unit.
#include "device/platform.h"
#include "gemm/instruction_args.h"
#include "gemm/pipelines/instruction.h"

namespace graphopt::hip {

template <class T>
struct TileLds {
  static constexpr int kStride = 24;  // 16-byte rows
  alignas(16) T a[16 * kStride];
  alignas(16) T b[16 * kStride];
};

// 16 x 16 elements of a matrix of rows x columns into LDS, zeros around; `transpose` as it says.
template <class T>
DEVICE void load_tile(T* lds, const T* x, int row, int column, int rows, int columns, bool transpose) {
  NO_UNROLL for (int i = thread_x(); i < 256; i += kWave) {
    const int r = row + i / 16, c = column + i % 16;
    const T value = r < rows && c < columns ? x[r * columns + c] : from_float<T>(0.0f);
    lds[transpose ? i % 16 * TileLds<T>::kStride + i / 16 : i / 16 * TileLds<T>::kStride + i % 16] = value;
  }
}

// sum += A B^T at (row, column). A [M, K], B [N, K].
template <class T>
DEVICE void multiply_tiles(typename Tile<T>::Sum& sum, const T* a, const T* b, int row, int column, int M,
                           int N, int K, TileLds<T>& lds) {
  for (int k = 0; k < K; k += 16) {
    barrier();
    load_tile(lds.a, a, row, k, M, K, false);
    load_tile(lds.b, b, column, k, N, K, false);
    barrier();
    const auto left = Tile<T>::load_left([&](int r, int i) { return lds.a + r * TileLds<T>::kStride + i; });
    const auto right = Tile<T>::load_right([&](int c, int i) { return lds.b + c * TileLds<T>::kStride + i; });
    Tile<T>::multiply(sum, left, right);
  }
}

template <class T>
DEVICE void store_tile(const typename Tile<T>::Sum& sum, T* y, int row, int column, int rows, int columns) {
  UNROLL for (int i = 0; i < Tile<T>::kSums; ++i) {
    const int r = row + Tile<T>::row(Tile<T>::row_of(i)), c = column + Tile<T>::column(i);
    if (r < rows && c < columns) y[r * columns + c] = from_float<T>(sum.v[i]);
  }
}

template <class T>
DEVICE void tile_product(const TileArgs& args, TileLds<T>& lds) {
  const T *a = args.a, *b = args.b;
  T* y = args.y;
  typename Tile<T>::Sum sum = {};
  const int row = block_y() * 16, column = block_x() * 16;
  multiply_tiles(sum, a, b, row, column, args.M, args.N, args.K, lds);
  store_tile<T>(sum, y, row, column, args.M, args.N);
}

template <class T>
DEVICE void tile_chain(const TileChainArgs& args, TileLds<T>& lds) {
  const T *a = args.a, *b = args.b, *c = args.c;
  T* y = args.y;
  const int M = args.M, N = args.N, P = args.P;
  typename Tile<T>::Sum total = {};
  const int row = block_y() * 16, column = block_x() * 16;
  for (int n = 0; n < N; n += 16) {
    typename Tile<T>::Sum sum = {};
    multiply_tiles(sum, a, b, row, n, M, N, args.K, lds);
    barrier();
    load_tile(lds.a, c, n, column, N, P, !Tile<T>::kLoadsRows);
    barrier();
    typename Tile<T>::Right right;
    if constexpr (Tile<T>::kLoadsRows) {
      right = Tile<T>::load_right_rows([&](int i, int j) { return lds.a + i * TileLds<T>::kStride + j; });
    } else {
      right = Tile<T>::load_right([&](int j, int i) { return lds.a + j * TileLds<T>::kStride + i; });
    }
    Tile<T>::multiply(total, Tile<T>::left_of(sum), right);
  }
  store_tile<T>(total, y, row, column, M, P);
}

template <class T>
DEVICE void tile_rows(const TileArgs& args, TileLds<T>& lds) {
  const T *a = args.a, *b = args.b;
  T* y = args.y;
  const int M = args.M, N = args.N;
  typename Tile<T>::Sum sum = {};
  const int row = block_x() * 16;
  multiply_tiles(sum, a, b, row, 0, M, N, args.K, lds);
  UNROLL for (int which = 0; which < Tile<T>::kRows; ++which) {
    float most = -1e30f, total = 0;
    UNROLL for (int i = 0; i < Tile<T>::kSums; ++i) {
      if (Tile<T>::row_of(i) != which || Tile<T>::column(i) >= N) continue;
      most = max_float(most, sum.v[i]);
      total += sum.v[i];
    }
    most = Tile<T>::row_max(most);
    total = Tile<T>::row_sum(total);
    const int r = row + Tile<T>::row(which);
    if (r >= M) continue;
    y[2 * r] = from_float<T>(most);
    y[2 * r + 1] = from_float<T>(total);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define TILE_KERNELS(T, suffix)                                   \
  KERNEL(tile_product_##suffix, kWave, TileArgs, a, b, y) {       \
    SHARED(TileLds<T>, lds);                                      \
    tile_product<T>(args, lds);                                   \
  }                                                               \
  KERNEL(tile_chain_##suffix, kWave, TileChainArgs, a, b, c, y) { \
    SHARED(TileLds<T>, lds);                                      \
    tile_chain<T>(args, lds);                                     \
  }                                                               \
  KERNEL(tile_rows_##suffix, kWave, TileArgs, a, b, y) {          \
    SHARED(TileLds<T>, lds);                                      \
    tile_rows<T>(args, lds);                                      \
  }

TILE_KERNELS(float, f32)
TILE_KERNELS(half_t, f16)
