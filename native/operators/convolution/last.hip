// Convolutions in channels last as products whose operands come in whole packs (gemm/loaders/dense.h), with bias, sum and
// activation at their end: what runs in a region where the vendor's library is not installed.
//
// A step of the product is a part of the channels of one tap, or of several taps: 16 bytes of a pixel are one
// access, outside of X zeros. 2 M N K FLOPs against the elements of X, W and Y; X comes from the cache for all
// taps but the first. Launch: operators/convolution/plan.cpp.
#include "device/platform.h"
#include "gemm/epilogue.h"
#include "gemm/kernels.h"
#include "gemm/loaders/dense.h"
#include "operators/convolution/last_args.h"

namespace graphopt::hip {

// The patches of a work-group's pixels on their way to LDS. A work-item has the same k of some pixels.
template <class P>
struct PanelOfPatches {
  static constexpr int kAcross = P::kDepth / 8, kRows = P::kThreads / kAcross, kPacks = P::kM / kRows;
  // One group of copies behind another: what lies between a load from LDS and a copy costs three instructions.
  static constexpr int kGroups = 2;
  static_assert(kPacks * kRows == P::kM, "whole packs for every work-item");

  static constexpr int kNoTap = kConvLastTaps;  // whose bit is never set

  const ConvLastArgs& args;
  const half_t* x;
  int row, column, k, end;
  int channel, r, s, offset;                  // of the step's tap
  int at[kPacks];                             // the pixel of X at the first tap, perhaps outside
  uint32_t taps[kPacks];                      // bit r: tap row r is inside; bit 16 + s: tap column s is
  PacksToLds<P::kAhead, kPacks, true> packs;  // of which the next taps copy most again

  DEVICE PanelOfPatches(const ConvLastArgs& of, int first_m, int first_k, int depth)
      : args(of),
        x(of.x),
        row(thread_x() / kAcross),
        column(thread_x() % kAcross * 8),
        k(first_k + column),
        end(first_k + depth) {
    const ConvWindow& window = args.window;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int m = first_m + i * kRows + row;
      const auto pixel = static_cast<uint32_t>(min_int(m, args.M - 1));
      const uint32_t image = divide(pixel, args.per_image), rest = pixel - image * args.per_image.d;
      const uint32_t down = divide(rest, args.columns);
      const int top = static_cast<int>(down) * window.stride_h - window.top;
      const int left = static_cast<int>(rest - down * args.columns.d) * window.stride_w - window.left;
      at[i] = (static_cast<int>(image) * args.H + top) * args.W + left;
      taps[i] = inside(top, args.H, m < args.M ? window.kernel_h : 0, window.dilation_h) |
                inside(left, args.W, window.kernel_w, window.dilation_w) << 16;
    }
  }

  // Bit i: first + i step is one of `size`.
  DEVICE static uint32_t inside(int first, int size, int count, int step) {
    uint32_t bits = 0;
    NO_UNROLL for (int i = 0; i < count; ++i) {
      const bool is = static_cast<uint32_t>(first) < static_cast<uint32_t>(size);
      bits |= static_cast<uint32_t>(is) << i;
      first += step;
    }
    return bits;
  }

  template <class Row>
  DEVICE void begin(Row* to, int part) {
    constexpr int kParts = P::kDepth / 16;
    if (part <= 0) {
      const uint32_t tap = divide(static_cast<uint32_t>(k), args.channels);
      channel = k - static_cast<int>(tap * args.channels.d);
      r = static_cast<int>(divide(tap, args.kernel_w));
      s = static_cast<int>(tap) - r * static_cast<int>(args.kernel_w.d);
      offset = r * args.window.dilation_h * args.W + s * args.window.dilation_w;
      if (k >= end) r = kNoTap;
    }
    const auto C = static_cast<int32_t>(args.channels.d);
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if (!in_part(i, kPacks, part, kParts, kGroups)) continue;
      const bool is_inside = (taps[i] >> r & taps[i] >> (16 + s) & 1) != 0;
      packs.begin(i, &to[i * kRows + row][column], x + static_cast<ptrdiff_t>(at[i] + offset) * C + channel,
                  is_inside);
    }
    if (is_last_part(part, kParts)) k += P::kDepth;
  }
  template <class Row>
  DEVICE void finish(Row* to) const {
    UNROLL for (int i = 0; i < kPacks; ++i) packs.finish(i, &to[i * kRows + row][column]);
  }
};

template <class P>
DEVICE void conv_last(const ConvLastArgs& args, typename P::Lds& lds) {
  const half_t* w = args.w;
  const int part = block_z();
  const int first_k = part * args.splits.depth;
  const int depth = min_int(args.splits.depth, args.K - first_k);
  const TilePlace place = tile_place(args.across, args.down);
  const int first_m = place.down * P::kM, first_n = place.across * P::kN;
  PanelOfPatches<P> left(args, first_m, first_k, depth);
  PanelAlongK<P::kAhead, P::kN, P::kDepth, P::kThreads, PanelOfPatches<P>::kGroups> right(
      w + static_cast<ptrdiff_t>(first_n) * args.K + first_k, args.K, args.N - first_n, depth);
  typename P::Product product;
  multiply_panels<P>(product, lds, depth, left, right);
  store_panels<P>(args, lds, product, static_cast<uint32_t>(part), 0, first_m, first_n);
}

template <class P>
DEVICE void conv_apart(const ConvApartArgs& args, typename P::Lds& lds) {
  const half_t *x = args.x, *w = args.w, *bias = args.bias, *residual = args.residual;
  half_t* y = args.y;
  const int32_t M = args.M, N = args.N, K = args.K;
  const TilePlace place = tile_place(args.across, args.down);
  const int first_m = place.down * P::kM, first_n = place.across * P::kN;
  LeftPanel<P> left(x + static_cast<ptrdiff_t>(first_m) * K, K, M - first_m, K);
  RightPanel<P, true> right(w + first_n, N, N - first_n, K);
  typename P::Product product;
  multiply_panels<P>(product, lds, K, left, right);
  const int column_of_w = first_n + P::Product::template pack_column<8>();
  const bool is_column = column_of_w < N;
  const int n = is_column ? column_of_w : 0;
  const uint32_t tap = divide(static_cast<uint32_t>(n), args.filters);
  const int filter = n - static_cast<int>(tap * args.filters.d);
  const uint32_t r = divide(tap, args.window_w), s = tap - r * args.window_w.d;
  const ColumnEnd<half_t> column(args.epilogue, bias, residual, y, filter,
                                 static_cast<int32_t>(args.filters.d));
  const auto at = [&](int m) {
    const auto pixel_of_x = static_cast<uint32_t>(first_m + m);
    const uint32_t row = divide(pixel_of_x, args.columns);  // over all images
    const uint32_t across = pixel_of_x - row * args.columns.d;
    const size_t down = static_cast<size_t>(row) * static_cast<size_t>(args.window_h) + r;
    const size_t right_of = static_cast<size_t>(across) * args.window_w.d + s;
    const size_t pixel = down * args.columns.d * args.window_w.d + right_of;
    return pixel * args.filters.d + static_cast<size_t>(filter);
  };
  product.template end_packs<8>(lds, TileEnd<decltype(at)>{column, M - first_m, is_column, at});
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define DENSE_KERNEL(tile, groups, name)                                                               \
  KERNEL_SHARING(conv_last_##name, (Panels<tile, false>::kThreads), groups, ConvLastArgs, x, w, bias,  \
                 residual, y, partial) {                                                               \
    using P = Panels<tile, false>;                                                                     \
    LARGE_SHARED(P::Lds, lds);                                                                         \
    conv_last<P>(args, lds);                                                                           \
  }                                                                                                    \
  KERNEL_SHARING(conv_apart_##name, (Panels<tile, true>::kThreads), groups, ConvApartArgs, x, w, bias, \
                 residual, y) {                                                                        \
    using P = Panels<tile, true>;                                                                      \
    LARGE_SHARED(P::Lds, lds);                                                                         \
    conv_apart<P>(args, lds);                                                                          \
  }

GEMM_DENSE_KERNELS
