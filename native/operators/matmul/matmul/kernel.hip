// Y = act(alpha A B + bias + beta R) for batches of matrices of any shape. This kernel runs if the vendor's
// library is not available.
//
// The kernel needs 2 M N K FLOPs for M K + K N + M N elements, and is compute-bound from about 128 rows on. Row-major
// and column-major operands are loaded 16 bytes at a time, or one element at a time if their rows or columns are not
// aligned to 16 bytes. float16 runs on the matrix units (gemm/pipelines/matrix.h). float32, and float16 on targets
// without matrix units, run in gemm/pipelines/vector.h: float32 on CDNA's matrix units, everything else on the vector
// unit. Sums are float32. If there are fewer work-groups than the device needs, K is split and gemm/splits.hip adds the
// partial sums. scripts/gpu_bench.py compares the kernel with cuBLAS. Launch: operators/matmul/matmul/plan.cpp.
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "gemm/epilogue.h"
#include "gemm/kernels.h"
#include "gemm/loaders/dense.h"
#include "gemm/loaders/strided.h"
#include "gemm/pipelines/aligned.h"
#include "operators/matmul/matmul/args.h"

namespace graphopt::hip {

// block_z() is the index of a split among the splits of all matrices of Y. With more than one split of a matrix, the
// sums are stored to `partial` without the epilogue.
template <class Gemm, class T>
DEVICE void gemm(const GemmArgs& args) {
  SHARED(lds, typename Gemm::Lds);
  const T *a = args.a, *b = args.b;
  const int32_t M = args.M, N = args.N;
  const OperandLayout &a_layout = args.a_layout, &b_layout = args.b_layout;
  const Splits& splits = args.splits;
  const auto part = static_cast<uint32_t>(block_z()), z = divide(part, splits.count);
  const int first_k = static_cast<int>(part - z * splits.count.d) * splits.depth;
  const int depth = min_int(splits.depth, args.K - first_k);
  const int first_m = block_y() * Gemm::kM, first_n = block_x() * Gemm::kN;
  const auto offset = [&](const OperandLayout& layout, int line) {
    return static_cast<ptrdiff_t>(line) * layout.line + static_cast<ptrdiff_t>(first_k) * layout.k;
  };
  OperandPart<T, Gemm::kM, Gemm::kDepth, Gemm::kThreads, Gemm::kByLine> left(
      a + offset_of(z, args.batch, args.a_batch) + offset(a_layout, first_m), a_layout, M - first_m, depth);
  OperandPart<T, Gemm::kN, Gemm::kDepth, Gemm::kThreads, Gemm::kByLine> right(
      b + offset_of(z, args.batch, args.b_batch) + offset(b_layout, first_n), b_layout, N - first_n, depth);
  Gemm tile;
  tile.run(
      lds, depth,
      [&](int k, int) {
        left.load(k);
        right.load(k);
      },
      [&](int buffer) {
        left.store(lds.a[buffer]);
        right.store(lds.b[buffer]);
      });
  tile.template for_each_pack<Pack<T>::kSize>(lds, [&](int m, int n, auto& values) {
    m += first_m;
    n += first_n;
    if (m >= M || n >= N) return;
    const size_t at = static_cast<size_t>(m) * static_cast<size_t>(N) + static_cast<size_t>(n);
    store_sums<T>(args, part, z, at, n, values);
  });
}

template <GemmTile kTile, bool kRightByK>
DEVICE void gemm_aligned(const GemmAlignedArgs& args) {
  using P = AlignedGemm<kTile, kRightByK>;
  LARGE_SHARED(lds, typename P::Lds);
  const half_t *a = args.a, *b = args.b;
  const Splits& splits = args.splits;
  const auto part = static_cast<uint32_t>(block_z()), z = divide(part, splits.count);
  const int first_k = static_cast<int>(part - z * splits.count.d) * splits.depth;
  const int depth = min_int(splits.depth, args.K - first_k);
  const TilePosition place = tile_position(args.across, args.down);
  const int first_m = place.down * P::kM, first_n = place.across * P::kN;
  LeftRows<P> left(
      a + offset_of(z, args.batch, args.a_batch) + static_cast<ptrdiff_t>(first_m) * args.a_row + first_k,
      args.a_row, args.M - first_m, depth);
  const ptrdiff_t at = kRightByK ? static_cast<ptrdiff_t>(first_k) * args.b_row + first_n
                                 : static_cast<ptrdiff_t>(first_n) * args.b_row + first_k;
  RightRows<P, kRightByK> right(b + offset_of(z, args.batch, args.b_batch) + at, args.b_row, args.N - first_n,
                                depth);
  typename P::Gemm gemm;
  multiply_aligned<P>(gemm, lds, depth, left, right);
  store_tile<P>(args, lds, gemm, part, z, first_m, first_n);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define GEMM_KERNEL(name, type, ...)                                                     \
  KERNEL_OF(gemm_##name##_##type, (gemm<StridedGemm<GemmTile::k##name##_##type>, type>), \
            StridedGemm<GemmTile::k##name##_##type>::kThreads, GemmArgs, a, b, bias, residual, y, partial)
// gemm_panels_*: B is [K, N] in memory. gemm_transposed_panels_*: B is [N, K].
#define GEMM_ALIGNED_KERNELS(name, dense, halo, packed, int8, groups, ...)                                \
  GEMM_ON_##dense(                                                                                        \
      KERNEL_OF(gemm_panels_##name##_f16, (gemm_aligned<GemmTile::kAligned##name, true>),                 \
                (AlignedGemm<GemmTile::kAligned##name, true>::kBounds), GemmAlignedArgs, a, b, bias,      \
                residual, y, partial)                                                                     \
          KERNEL_OF(gemm_transposed_panels_##name##_f16, (gemm_aligned<GemmTile::kAligned##name, false>), \
                    (AlignedGemm<GemmTile::kAligned##name, false>::kBounds), GemmAlignedArgs, a, b, bias, \
                    residual, y, partial))

GEMM_VECTOR_TILES(GEMM_KERNEL)
#if !GRAPHOPT_MATRIX_F16 || GRAPHOPT_WAVE
GEMM_VECTOR_F16_TILES(GEMM_KERNEL)
#endif
#if GRAPHOPT_MATRIX_F16
GEMM_STRIDED_TILES(GEMM_KERNEL)
GEMM_ALIGNED_TILES(GEMM_ALIGNED_KERNELS)
#endif
