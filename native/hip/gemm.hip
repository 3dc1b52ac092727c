// Y = alpha A B + beta Y for batches of matrices with any strides, in float32: what runs where the vendor's
// library is not installed.
#include "hip/platform.h"
#include "hip/sgemm.h"
#include "hip/walk.h"

namespace graphopt::hip {

using GemmTile = Sgemm<64, 32, 4, 4, 32, 32>;

// Of a matrix of one batch: element (row, column) is at row `row` + column `column`.
struct MatrixStrides {
  int32_t row, column;
};

// A [M, K], B [K, N], Y [M, N] contiguous, one batch after the other.
template <class T>
DEVICE void gemm(const T* a, const T* b, T* y, int32_t M, int32_t N, int32_t K, MatrixStrides a_strides,
                 MatrixStrides b_strides, const Axes& batch, const Strides& a_batch, const Strides& b_batch,
                 float alpha, float beta, GemmTile::Lds& lds) {
  const auto z = static_cast<uint32_t>(block_z());
  const T* a0 = a + offset_of(z, batch, a_batch);
  const T* b0 = b + offset_of(z, batch, b_batch);
  T* y0 = y + static_cast<size_t>(z) * static_cast<size_t>(M) * static_cast<size_t>(N);
  const int first_m = block_y() * GemmTile::kM, first_n = block_x() * GemmTile::kN;
  const int depth = (K + GemmTile::kDepth - 1) / GemmTile::kDepth * GemmTile::kDepth;
  GemmTile product;
  product.run(
      lds, depth,
      [&](int k, int m) {
        Pack<float> pack;
        UNROLL for (int j = 0; j < 4; ++j) {
          const int row = first_m + m + j;
          pack.v[j] = k < K && row < M ? to_float(a0[static_cast<ptrdiff_t>(row) * a_strides.row +
                                                     static_cast<ptrdiff_t>(k) * a_strides.column])
                                       : 0.0f;
        }
        return pack;
      },
      [&](int k, int n) {
        Pack<float> pack;
        UNROLL for (int j = 0; j < 4; ++j) {
          const int column = first_n + n + j;
          pack.v[j] = k < K && column < N ? to_float(b0[static_cast<ptrdiff_t>(k) * b_strides.row +
                                                        static_cast<ptrdiff_t>(column) * b_strides.column])
                                          : 0.0f;
        }
        return pack;
      });
  product.each([&](int m, int n, float (&values)[4]) {
    const int row = first_m + m;
    if (row >= M) return;
    UNROLL for (int j = 0; j < 4; ++j) {
      const int column = first_n + n + j;
      if (column >= N) continue;
      T& out = y0[static_cast<size_t>(row) * static_cast<size_t>(N) + static_cast<size_t>(column)];
      const float before = beta != 0 ? beta * to_float(out) : 0.0f;
      out = from_float<T>(alpha * values[j] + before);
    }
  });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define GEMM_KERNEL(T, suffix)                                                                               \
  KERNEL(gemm_##suffix, GemmTile::kThreads,                                                                  \
         (const T* a, const T* b, T* y, int32_t M, int32_t N, int32_t K, MatrixStrides a_strides,            \
          MatrixStrides b_strides, Axes batch, Strides a_batch, Strides b_batch, float alpha, float beta)) { \
    SHARED(GemmTile::Lds, lds);                                                                              \
    gemm(a, b, y, M, N, K, a_strides, b_strides, batch, a_batch, b_batch, alpha, beta, lds);                 \
  }

GEMM_KERNEL(float, f32)
GEMM_KERNEL(half_t, f16)
