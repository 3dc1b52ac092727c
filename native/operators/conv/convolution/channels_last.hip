// float16 convolutions in channels last (NHWC) as implicit GEMMs, with bias, residual and activation as epilogue.
// Operands are loaded in packs of 16 bytes (gemm/loaders/dense.h). These kernels run if no vendor's library accepts the
// convolution.
//
// The rows (M) of the GEMM are pixels of Y, its columns (N) are filters, and K counts the channels of all taps. A tap
// is one position of the filter window. A step along K covers some channels of one tap, or several taps. One access
// reads 16 bytes of a pixel, or zeros outside of X. The kernels need 2 M N K FLOPs. They read each element of X and W
// from memory once; the other reads of X hit the cache. conv_disjoint computes transposed convolutions with disjoint
// windows (disjoint_args.h). Launch: operators/conv/convolution/plan.cpp.
#include "device/platform.h"
#include "gemm/epilogue.h"
#include "gemm/kernels.h"
#include "gemm/loaders/dense.h"
#include "gemm/loaders/im2col.h"
#include "gemm/pipelines/aligned.h"
#include "operators/conv/convolution/disjoint_args.h"

namespace graphopt::hip {

template <class P>
DEVICE void channels_last_conv(const ChannelsLastConvArgs& args) {
  LARGE_SHARED(lds, typename P::Lds);
  const half_t* w = args.w;
  const int part = block_z();
  const int first_k = part * args.splits.depth;
  const int depth = min_int(args.splits.depth, args.K - first_k);
  const TilePosition place = tile_position(args.across, args.down);
  const int first_m = place.down * P::kM, first_n = place.across * P::kN;
  Im2col<P> left(args, first_m, first_k, depth);
  DenseRows<P::kAsyncCopies, P::kN, P::kDepth, P::kThreads, Im2colRows<P>::kGroups> right(
      w + static_cast<ptrdiff_t>(first_n) * args.K + first_k, args.K, args.N - first_n, depth);
  typename P::Gemm gemm;
  multiply_aligned<P>(gemm, lds, depth, left, right);
  store_tile<P>(args, lds, gemm, static_cast<uint32_t>(part), 0, first_m, first_n);
}

template <class P>
DEVICE void conv_disjoint(const ConvDisjointArgs& args) {
  LARGE_SHARED(lds, typename P::Lds);
  const half_t *x = args.x, *w = args.w, *bias = args.bias, *residual = args.residual;
  half_t* y = args.y;
  const int32_t M = args.M, N = args.N, K = args.K;
  const TilePosition place = tile_position(args.across, args.down);
  const int first_m = place.down * P::kM, first_n = place.across * P::kN;
  LeftRows<P> left(x + static_cast<ptrdiff_t>(first_m) * K, K, M - first_m, K);
  RightRows<P, true> right(w + first_n, N, N - first_n, K);
  typename P::Gemm gemm;
  multiply_aligned<P>(gemm, lds, K, left, right);
  const int column_of_w = first_n + P::Gemm::template pack_column<8>();
  const bool is_column = column_of_w < N;
  const int n = is_column ? column_of_w : 0;
  const uint32_t tap = divide(static_cast<uint32_t>(n), args.filters);
  const int filter = n - static_cast<int>(tap * args.filters.d);
  const uint32_t r = divide(tap, args.window_w), s = tap - r * args.window_w.d;
  const ColumnEpilogue<half_t> column(args.epilogue, bias, residual, y, filter,
                                      static_cast<int32_t>(args.filters.d));
  const auto at = [&](int m) {
    const auto pixel_of_x = static_cast<uint32_t>(first_m + m);
    const uint32_t row = divide(pixel_of_x, args.columns);  // counted over all images
    const uint32_t column_of_x = pixel_of_x - row * args.columns.d;
    const size_t row_of_y = static_cast<size_t>(row) * static_cast<size_t>(args.window_h) + r;
    const size_t column_of_y = static_cast<size_t>(column_of_x) * args.window_w.d + s;
    const size_t pixel = row_of_y * args.columns.d * args.window_w.d + column_of_y;
    return pixel * args.filters.d + static_cast<size_t>(filter);
  };
  gemm.template apply_epilogue<8>(lds, TileEpilogue<decltype(at)>{column, M - first_m, is_column, at});
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#if GRAPHOPT_MATRIX_F16
// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define CONV_KERNELS(name, dense, halo, packed, int8, groups, ...)                                          \
  GEMM_ON_##dense(KERNEL_OF(                                                                                \
      channels_last_conv_##name##_f16, (channels_last_conv<AlignedGemm<GemmTile::kAligned##name, false>>),  \
      (AlignedGemm<GemmTile::kAligned##name, false>::kBounds), ChannelsLastConvArgs, x, w, bias, residual,  \
      y, partial) KERNEL_OF(conv_disjoint_##name##_f16,                                                     \
                            (conv_disjoint<AlignedGemm<GemmTile::kAligned##name, true>>),                   \
                            (AlignedGemm<GemmTile::kAligned##name, true>::kBounds), ConvDisjointArgs, x, w, \
                            bias, residual, y))
GEMM_ALIGNED_TILES(CONV_KERNELS)
#endif
