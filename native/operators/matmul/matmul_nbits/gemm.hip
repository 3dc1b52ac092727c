// MatMulNBits for many rows: a float16 GEMM on the matrix units (gemm/pipelines/matrix.h), whose loader dequantizes the
// weights and stores them to LDS (gemm/loaders/packed.h). Compute-bound from about 128 rows on.
#include "device/platform.h"
#include "gemm/epilogue.h"
#include "gemm/kernels.h"
#include "gemm/loaders/dense.h"
#include "gemm/loaders/packed.h"
#include "gemm/pipelines/aligned.h"
#include "operators/matmul/matmul_nbits/args.h"

namespace graphopt::hip {

template <GemmTile kTile, int kBits>
DEVICE void matmul_nbits_gemm(const NBitsGemmArgs& args) {
  using P = AlignedGemm<kTile, false>;
  LARGE_SHARED(lds, typename P::Lds);
  const auto part = static_cast<uint32_t>(block_z());
  const int first_k = static_cast<int>(part) * args.splits.depth;
  const int depth = min_int(args.splits.depth, args.K - first_k);
  const TilePosition place = tile_position(args.across, args.down);
  const int first_m = place.down * P::kM, first_n = place.across * P::kN;
  const half_t* const a = args.a;
  // Starting all copies of a step at once keeps the fewest addresses in registers.
  DenseRows<P::kAsyncCopies, P::kM, P::kDepth, P::kThreads, 1> left(
      a + static_cast<ptrdiff_t>(first_m) * args.K + first_k, args.K, args.M - first_m, depth);
  PackedRows<kBits, P::kAsyncCopies, P::kN, P::kDepth, P::kThreads> right(
      PackedLines<kBits>(args.weights, args.b, args.scales, args.zero_points, first_n, args.N - first_n),
      first_k);
  typename P::Gemm gemm;
  multiply_aligned<P>(gemm, lds, depth, left, right);
  store_tile<P>(args, lds, gemm, part, 0, first_m, first_n);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define NBITS_KERNELS(name, dense, halo, packed, int8, groups, ...)                                       \
  GEMM_ON_##packed(                                                                                       \
      KERNEL_OF(matmul_nbits_2_##name##_f16, (matmul_nbits_gemm<GemmTile::kAligned##name, 2>),            \
                (AlignedGemm<GemmTile::kAligned##name, false>::kBounds), NBitsGemmArgs, a, b, scales,     \
                zero_points, bias, residual, y, partial)                                                  \
          KERNEL_OF(matmul_nbits_4_##name##_f16, (matmul_nbits_gemm<GemmTile::kAligned##name, 4>),        \
                    (AlignedGemm<GemmTile::kAligned##name, false>::kBounds), NBitsGemmArgs, a, b, scales, \
                    zero_points, bias, residual, y, partial)                                              \
              KERNEL_OF(matmul_nbits_8_##name##_f16, (matmul_nbits_gemm<GemmTile::kAligned##name, 8>),    \
                        (AlignedGemm<GemmTile::kAligned##name, false>::kBounds), NBitsGemmArgs, a, b,     \
                        scales, zero_points, bias, residual, y, partial))

#if GRAPHOPT_MATRIX_F16
GEMM_ALIGNED_TILES(NBITS_KERNELS)
#endif
