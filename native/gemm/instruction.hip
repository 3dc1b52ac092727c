// Kernels that multiply 16 x 16 tiles in one wave with pipelines/instruction.h alone, to test the tile of
// each architecture in isolation. Their speed means nothing, because one wave runs alone on a compute unit.
#include "device/platform.h"
#include "gemm/instruction_args.h"
#include "gemm/pipelines/instruction.h"

namespace graphopt::hip {

template <class T>
struct InstructionLds {
  static constexpr int kStride = 24;  // rows start at multiples of 16 bytes
  alignas(16) T a[16 * kStride];
  alignas(16) T b[16 * kStride];
};

// Loads 16 x 16 elements of a matrix [rows, columns] to LDS, with zeros outside the matrix.
template <class T>
DEVICE void load_tile(T* lds, const T* x, int row, int column, int rows, int columns, bool transpose) {
  NO_UNROLL for (int i = thread_x(); i < 256; i += kWave) {
    const int r = row + i / 16, c = column + i % 16;
    const T value = r < rows && c < columns ? x[r * columns + c] : from_float<T>(0.0f);
    lds[transpose ? i % 16 * InstructionLds<T>::kStride + i / 16
                  : i / 16 * InstructionLds<T>::kStride + i % 16] = value;
  }
}

// Adds the tile of A B^T at (row, column) to `sum`. A [M, K], B [N, K].
template <class T>
DEVICE void multiply_tiles(typename Instruction<T>::Sum& sum, const T* a, const T* b, int row, int column,
                           int M, int N, int K, InstructionLds<T>& lds) {
  for (int k = 0; k < K; k += 16) {
    barrier();
    load_tile(lds.a, a, row, k, M, K, false);
    load_tile(lds.b, b, column, k, N, K, false);
    barrier();
    const auto left =
        Instruction<T>::load_left([&](int r, int i) { return lds.a + r * InstructionLds<T>::kStride + i; });
    const auto right =
        Instruction<T>::load_right([&](int c, int i) { return lds.b + c * InstructionLds<T>::kStride + i; });
    Instruction<T>::multiply(sum, left, right);
  }
}

template <class T>
DEVICE void store_tile(const typename Instruction<T>::Sum& sum, T* y, int row, int column, int rows,
                       int columns) {
  UNROLL for (int i = 0; i < Instruction<T>::kSums; ++i) {
    const int r = row + Instruction<T>::row(Instruction<T>::row_of(i)),
              c = column + Instruction<T>::column(i);
    if (r < rows && c < columns) y[r * columns + c] = from_float<T>(sum.v[i]);
  }
}

template <class T>
DEVICE void tile_product(const TileArgs& args) {
  SHARED(lds, InstructionLds<T>);
  const T *a = args.a, *b = args.b;
  T* y = args.y;
  typename Instruction<T>::Sum sum = {};
  const int row = block_y() * 16, column = block_x() * 16;
  multiply_tiles(sum, a, b, row, column, args.M, args.N, args.K, lds);
  store_tile<T>(sum, y, row, column, args.M, args.N);
}

template <class T>
DEVICE void tile_chain(const TileChainArgs& args) {
  SHARED(lds, InstructionLds<T>);
  const T *a = args.a, *b = args.b, *c = args.c;
  T* y = args.y;
  const int M = args.M, N = args.N, P = args.P;
  typename Instruction<T>::Sum total = {};
  const int row = block_y() * 16, column = block_x() * 16;
  for (int n = 0; n < N; n += 16) {
    typename Instruction<T>::Sum sum = {};
    multiply_tiles(sum, a, b, row, n, M, N, args.K, lds);
    barrier();
    load_tile(lds.a, c, n, column, N, P, !Instruction<T>::kLoadsRows);
    barrier();
    typename Instruction<T>::Right right;
    if constexpr (Instruction<T>::kLoadsRows) {
      right = Instruction<T>::load_right_rows(
          [&](int i, int j) { return lds.a + i * InstructionLds<T>::kStride + j; });
    } else {
      right = Instruction<T>::load_right(
          [&](int j, int i) { return lds.a + j * InstructionLds<T>::kStride + i; });
    }
    Instruction<T>::multiply(total, Instruction<T>::to_left(sum), right);
  }
  store_tile<T>(total, y, row, column, M, P);
}

template <class T>
DEVICE void tile_rows(const TileArgs& args) {
  SHARED(lds, InstructionLds<T>);
  const T *a = args.a, *b = args.b;
  T* y = args.y;
  const int M = args.M, N = args.N;
  typename Instruction<T>::Sum sum = {};
  const int row = block_x() * 16;
  multiply_tiles(sum, a, b, row, 0, M, N, args.K, lds);
  UNROLL for (int which = 0; which < Instruction<T>::kRows; ++which) {
    float largest = -1e30f, total = 0;
    UNROLL for (int i = 0; i < Instruction<T>::kSums; ++i) {
      if (Instruction<T>::row_of(i) != which || Instruction<T>::column(i) >= N) continue;
      largest = max_float(largest, sum.v[i]);
      total += sum.v[i];
    }
    largest = Instruction<T>::row_max(largest);
    total = Instruction<T>::row_sum(total);
    const int r = row + Instruction<T>::row(which);
    if (r >= M) continue;
    y[2 * r] = from_float<T>(largest);
    y[2 * r + 1] = from_float<T>(total);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(tile_product, tile_product<T>, kWave, TileArgs, a, b, y)
FLOAT_KERNELS(tile_chain, tile_chain<T>, kWave, TileChainArgs, a, b, c, y)
FLOAT_KERNELS(tile_rows, tile_rows<T>, kWave, TileArgs, a, b, y)
