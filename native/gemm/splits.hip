// Reduces the partial sums of a GEMM that splits K among work-groups, and applies the epilogue: bias,
// residual, activation.
//
// Memory-bound: each partial sum is read once, and Y is written once. Launch: gemm/splits.h.
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "gemm/epilogue.h"
#include "gemm/splits_args.h"

namespace graphopt::hip {

template <class T>
DEVICE void gemm_sum(const GemmSumArgs& args) {
  const float* partial = args.partial;
  const T *bias = args.bias, *residual = args.residual;
  T* y = args.y;
  const int32_t N = args.N;
  const Divisor &across = args.across, &rows = args.rows;
  const Epilogue& epilogue = args.epilogue;
  constexpr int kSize = Pack<T>::kSize;
  const uint32_t i = work_item(kGemmSumThreads);
  if (i >= args.packs) return;
  const uint32_t row = divide(i, across), matrix = divide(row, rows);
  const auto n = static_cast<int>((i - row * across.d) * kSize);
  const size_t step = static_cast<size_t>(rows.d) * static_cast<size_t>(N);
  const float* from = partial + matrix * static_cast<size_t>(args.splits) * step +
                      (row - matrix * rows.d) * static_cast<size_t>(N) + static_cast<size_t>(n);
  float values[kSize] = {};
  for (int s = 0; s < args.splits; ++s) {
    if (epilogue.is_aligned != 0) {
      UNROLL for (int j = 0; j < kSize; j += 4) {
        const Pack<float> four = load_pack(from + j);
        UNROLL for (int e = 0; e < 4; ++e) values[j + e] += four.v[e];
      }
    } else {
      UNROLL for (int j = 0; j < kSize; ++j) {
        if (n + j < N) values[j] += from[j];
      }
    }
    from += step;
  }
  write_pack(epilogue, bias_of_matrix(epilogue, bias, matrix), residual, y,
             row * static_cast<size_t>(N) + static_cast<size_t>(n), n, N, values);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(gemm_sum, gemm_sum<T>, kGemmSumThreads, GemmSumArgs, partial, bias, residual, y)
