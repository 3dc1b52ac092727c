// GEMMs of int8 elements on the matrix units: Y = requantize(A B^T) with int32 sums, which are exact.
//
// The kernels need 2 M N K operations for M K + K N + M N bytes, and are compute-bound from about 256 rows on. They use
// the loaders and pipelines of float16, with a pair of int8 elements in place of a float16 element. Each row of A and B
// is contiguous along K, and its length is a multiple of 16 bytes; integer_lines copies and pads other operands
// (lines.hip). Unsigned elements x are multiplied as signed elements x - 128. The sums of the rows of A and B correct
// the result for zero points. Launch: plan.cpp.
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "gemm/integer_epilogue.h"
#include "gemm/kernels.h"
#include "gemm/loaders/dense.h"
#include "gemm/pipelines/aligned.h"
#include "operators/matmul/integer_matmul/args.h"

namespace graphopt::hip {

template <GemmTile kTile>
using IntegerGemm = AlignedGemm<kTile, false, Int8Pair>;

template <class P>
DEVICE void integer_gemm(const IntegerGemmArgs& args) {
  LARGE_SHARED(lds, typename P::Lds);
  const half_t *a = args.a, *b = args.b;
  const Splits& splits = args.splits;
  const auto part = static_cast<uint32_t>(block_z()), z = divide(part, splits.count);
  const int first_k = static_cast<int>(part - z * splits.count.d) * splits.depth;
  const int depth = min_int(splits.depth, args.K - first_k);
  const TilePosition place = tile_position(args.across, args.down);
  const int first_m = place.down * P::kM, first_n = place.across * P::kN;
  const uint32_t left_matrix = offset_of(z, args.batch, args.a_batch),
                 right_matrix = offset_of(z, args.batch, args.b_batch);
  const auto element = [&](uint32_t matrix, int lines, int line) {
    const size_t row = matrix * static_cast<size_t>(lines) + static_cast<size_t>(line);
    return row * static_cast<size_t>(args.K) + static_cast<size_t>(first_k);
  };
  LeftRows<P> left(a + element(left_matrix, args.M, first_m), args.K, args.M - first_m, depth);
  RightRows<P, false> right(b + element(right_matrix, args.N, first_n), args.K, args.N - first_n, depth);
  typename P::Gemm gemm;
  gemm.inverted_bits = args.epilogue.inverted_bits;
  multiply_aligned<P>(gemm, lds, depth, left, right);
  gemm.reduce_splits(reinterpret_cast<int32_t*>(&lds));
  store_integer_tile<P>(args, lds, gemm, args.row_sums, part, z, left_matrix, right_matrix, first_m, first_n,
                        args.N);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#if GRAPHOPT_MATRIX_F16
// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define INTEGER_KERNEL(name, dense, halo, packed, int8, groups, ...)                                         \
  GEMM_ON_##int8(KERNEL_OF(integer_gemm_##name##_i8, integer_gemm<IntegerGemm<GemmTile::kAligned##name>>,    \
                           (IntegerGemm<GemmTile::kAligned##name>::kBounds), IntegerGemmArgs, a, b, columns, \
                           row_sums, residual, table, y, partial))
GEMM_ALIGNED_TILES(INTEGER_KERNEL)

KERNEL(integer_gemm_sum, kIntegerSumThreads, IntegerSumArgs, partial, columns, row_sums, residual, table, y) {
  const int32_t *from = args.partial, *row_sums = args.row_sums;
  const int32_t N = args.N;
  const Divisor &across = args.across, &rows = args.rows;
  const uint32_t i = work_item(kIntegerSumThreads);
  if (i >= args.packs) return;
  const uint32_t row = divide(i, across), z = divide(row, rows), m = row - z * rows.d;
  const auto n = static_cast<int>((i - row * across.d) * kIntegerPack);
  const size_t step = static_cast<size_t>(rows.d) * static_cast<size_t>(N);
  const IntegerColumns column(args, offset_of(z, args.batch, args.b_batch), row_sums != nullptr, n, N);
  const size_t at = row * static_cast<size_t>(N) + static_cast<size_t>(n);
  const IntegerBytes added = column.load_residual(at);
  const int32_t row_sum =
      row_sums == nullptr
          ? 0
          : row_sums[offset_of(z, args.batch, args.a_batch) * static_cast<size_t>(rows.d) + m];
  from += z * static_cast<size_t>(args.splits) * step + m * static_cast<size_t>(N) + static_cast<size_t>(n);
  int32_t sums[kIntegerPack] = {};
  for (int s = 0; s < args.splits; ++s) {
    if (args.epilogue.whole_packs != 0) {
      const auto values = load_values(from);
      UNROLL for (int j = 0; j < kIntegerPack; ++j) sums[j] += values.v[j];
    } else {
      UNROLL for (int j = 0; j < kIntegerPack; ++j) {
        if (j < column.inside) sums[j] += from[j];
      }
    }
    from += step;
  }
  column.finish(sums, row_sum, added);
  column.store(at, sums);
}
#endif
