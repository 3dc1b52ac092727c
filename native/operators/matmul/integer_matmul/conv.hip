// Convolutions of int8 elements in channels last.
//
// integer_conv_*: implicit GEMMs on the matrix units, like the float16 kernels of
// operators/conv/convolution/channels_last.hip, with the operands and the epilogue of gemm.hip. Compute-bound.
// integer_depthwise*: one filter for each channel, on the vector unit. Memory-bound: x is read once (overlaps of
// windows come from the cache) and y is written once; each load or store of a work-item accesses 8 bytes. Launch:
// plan.cpp.
#include "blocks/gpu/bytes.h"
#include "device/platform.h"
#include "gemm/integer_epilogue.h"
#include "gemm/kernels.h"
#include "gemm/loaders/dense.h"
#include "gemm/loaders/im2col.h"
#include "gemm/pipelines/aligned.h"
#include "operators/matmul/integer_matmul/args.h"
#include "operators/matmul/integer_matmul/patches.h"

namespace graphopt::hip {

template <GemmTile kTile>
using IntegerGemm = AlignedGemm<kTile, false, Int8Pair>;

template <class P>
DEVICE void integer_conv(const IntegerConvArgs& args) {
  LARGE_SHARED(lds, typename P::Lds);
  const half_t* w = args.w;
  const int part = block_z();
  const int first_k = part * args.splits.depth;
  const int depth = min_int(args.splits.depth, args.K - first_k);
  const TilePosition place = tile_position(args.across, args.down);
  const uint32_t across = static_cast<uint32_t>(place.across), group = divide(across, args.tiles);
  const int first_m = place.down * P::kM;
  const auto first_n = static_cast<int>(group * args.filters.d + (across - group * args.tiles.d) * P::kN);
  // The end is computed again after the loop, because large tiles have no register for it.
  const auto end_n = [&] {
    return static_cast<int>((divide(static_cast<uint32_t>(first_n), args.filters) + 1) * args.filters.d);
  };
  const IntegerPatches patches(args, group);
  Im2col<P, IntegerPatches> left(patches, first_m, first_k, depth);
  DenseRows<P::kAsyncCopies, P::kN, P::kDepth, P::kThreads, Im2colRows<P>::kGroups, P::kParts,
            typename P::Gemm::Order>
      right(w + static_cast<ptrdiff_t>(first_n) * args.K + first_k, args.K, end_n() - first_n, depth);
  typename P::Gemm gemm;
  gemm.inverted_bits = args.epilogue.inverted_bits;
  multiply_aligned<P>(gemm, lds, depth, left, right);
  gemm.reduce_splits(reinterpret_cast<int32_t*>(&lds));
  store_integer_tile<P>(args, lds, gemm, nullptr, static_cast<uint32_t>(part), 0, 0, 0, first_m, first_n,
                        end_n());
}

// The strip of Y of a work-item: kStrip pixels of one row, from column `first` on, and kIntegerPack channels from
// `channel` on.
template <int kStrip>
struct DepthwisePlace {
  const IntegerDepthwiseArgs& args;
  int channel, row, first;
  size_t channels, first_pixel;
  const uint8_t *x, *outside;  // x: the channels of the first pixel of the image
  uint32_t inverted_bits;

  DEVICE DepthwisePlace(const IntegerDepthwiseArgs& of, uint32_t i)
      : args(of), channels(static_cast<size_t>(of.channels)), inverted_bits(of.epilogue.inverted_bits) {
    const uint32_t strip_of_all = divide(i, args.packs);
    channel = static_cast<int>(i - strip_of_all * args.packs.d) * kIntegerPack;
    const uint32_t row_of_all = divide(strip_of_all, args.strips), image = divide(row_of_all, args.rows);
    row = static_cast<int>(row_of_all - image * args.rows.d);
    first = static_cast<int>(strip_of_all - row_of_all * args.strips.d) * kStrip;
    first_pixel = static_cast<size_t>(row_of_all) * static_cast<size_t>(args.OW) + static_cast<size_t>(first);
    x = static_cast<const uint8_t*>(of.x) +
        static_cast<size_t>(image) * static_cast<size_t>(args.H) * static_cast<size_t>(args.W) * channels +
        channel;
    const IntegerColumnsHeader* header = args.columns;
    outside = reinterpret_cast<const uint8_t*>(header->outside);
  }

  // Returns signed bytes of the channels of a pixel, which may be outside.
  DEVICE uint64_t load(int h, int w) const {
    const bool inside = static_cast<uint32_t>(h) < static_cast<uint32_t>(args.H) &&
                        static_cast<uint32_t>(w) < static_cast<uint32_t>(args.W);
    const uint8_t* const from = inside ? x + static_cast<size_t>(h * args.W + w) * channels : outside;
    return *reinterpret_cast<const uint64_t*>(from) ^
           (static_cast<uint64_t>(inverted_bits) << 32 | inverted_bits);
  }
  DEVICE uint64_t weights(int tap) const {
    const uint8_t* w = args.w;
    return *reinterpret_cast<const uint64_t*>(w + static_cast<size_t>(tap) * static_cast<size_t>(args.row) +
                                              channel);
  }

  DEVICE void store(int32_t (&sums)[kStrip][kIntegerPack]) const {
    const IntegerColumns column(args, 0, false, channel, args.channels);
    const auto at = [&](int k) {
      return (first_pixel + static_cast<size_t>(k)) * channels + static_cast<size_t>(channel);
    };
    IntegerBytes added[kStrip] = {};
    UNROLL for (int k = 0; k < kStrip; ++k) {
      if (first + k < args.OW) added[k] = column.load_residual(at(k));
    }
    UNROLL for (int k = 0; k < kStrip; ++k) {
      if (first + k >= args.OW) return;
      column.finish(sums[k], 0, added[k]);
      column.store(at(k), sums[k]);
    }
  }
};

// Supports any window, tap by tap.
DEVICE void depthwise_any(const IntegerDepthwiseArgs& args) {
  const ConvWindow& p = args.window;
  const uint32_t i = work_item(kIntegerDepthwiseThreads);
  if (i >= args.total) return;
  const DepthwisePlace<kIntegerDepthwiseStrip> place(args, i);
  int32_t sums[kIntegerDepthwiseStrip][kIntegerPack] = {};
  const auto byte = [](uint64_t bytes, int j) {
    return static_cast<int32_t>(static_cast<int8_t>(bytes >> 8 * j));
  };
  for (int r = 0; r < p.kernel_h; ++r) {
    const int h = place.row * p.stride_h - p.top + r * p.dilation_h;
    for (int s = 0; s < p.kernel_w; ++s) {
      const uint64_t factor = place.weights(r * p.kernel_w + s);
      UNROLL for (int k = 0; k < kIntegerDepthwiseStrip; ++k) {
        const uint64_t in = place.load(h, (place.first + k) * p.stride_w - p.left + s * p.dilation_w);
        UNROLL for (int j = 0; j < kIntegerPack; ++j) sums[k][j] += byte(in, j) * byte(factor, j);
      }
    }
  }
  place.store(sums);
}

// Supports square windows with equal strides and without dilation. Four adjacent pixels are transposed to a word for
// each channel, and so are four adjacent taps: one instruction multiplies four taps. All outputs of the strip use the
// same words of pixels, with shifted taps.
template <int kSide, int kStride>
DEVICE void depthwise_square(const IntegerDepthwiseArgs& args) {
  constexpr int kStrip = kIntegerDepthwiseSquareStrip, kColumns = (kStrip - 1) * kStride + kSide;
  constexpr int kWords = (kColumns + 3) / 4;
  static_assert(kWords <= 2, "the taps of a row and their shifts fit into 8 bytes");
  const uint32_t i = work_item(kIntegerDepthwiseThreads);
  if (i >= args.total) return;
  const DepthwisePlace<kStrip> place(args, i);
  const int top = place.row * kStride - args.window.top, left = place.first * kStride - args.window.left;
  const auto transposed = [](const uint64_t (&bytes)[8], int word, int half, uint32_t (&to)[4]) {
    uint32_t from[4];
    UNROLL for (int k = 0; k < 4; ++k) from[k] = static_cast<uint32_t>(bytes[4 * word + k] >> 32 * half);
    transpose_bytes(from, to);
  };
  int32_t sums[kStrip][kIntegerPack] = {};
  const auto add_row = [&](int r) {
    uint64_t pixels[8] = {}, taps[8] = {};
    UNROLL for (int c = 0; c < kColumns; ++c) pixels[c] = place.load(top + r, left + c);
    UNROLL for (int s = 0; s < kSide; ++s) taps[s] = place.weights(r * kSide + s);
    UNROLL for (int half = 0; half < 2; ++half) {
      uint32_t in[kWords][4], factors[2][4] = {};
      UNROLL for (int word = 0; word < kWords; ++word) transposed(pixels, word, half, in[word]);
      UNROLL for (int word = 0; word < (kSide + 3) / 4; ++word) transposed(taps, word, half, factors[word]);
      UNROLL for (int c = 0; c < 4; ++c) {
        const uint64_t row = static_cast<uint64_t>(factors[1][c]) << 32 | factors[0][c];
        UNROLL for (int k = 0; k < kStrip; ++k) {
          const uint64_t shifted = row << (8 * k * kStride);
          UNROLL for (int word = 0; word < kWords; ++word) {
            const bool has_taps = k * kStride < 4 * (word + 1) && k * kStride + kSide > 4 * word;
            if (!has_taps) continue;
            int32_t& sum = sums[k][4 * half + c];
            sum = add_products(in[word][c], static_cast<uint32_t>(shifted >> 32 * word), sum);
          }
        }
      }
    }
  };
  if constexpr (kSide == 3) {
    UNROLL for (int r = 0; r < kSide; ++r) add_row(r);
  } else {
    // Loading all rows at once would take too many registers.
    NO_UNROLL for (int r = 0; r < kSide; ++r) add_row(r);
  }
  place.store(sums);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#if GRAPHOPT_MATRIX_F16
// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define INTEGER_CONV_KERNEL(name, dense, halo, packed, int8, groups, ...)                                    \
  GEMM_ON_##int8(KERNEL_OF(integer_conv_##name##_i8, integer_conv<IntegerGemm<GemmTile::kAligned##name>>,    \
                           (IntegerGemm<GemmTile::kAligned##name>::kBounds), IntegerConvArgs, x, w, columns, \
                           residual, table, y, partial))
GEMM_ALIGNED_TILES(INTEGER_CONV_KERNEL)
#endif

KERNEL_OF(integer_depthwise, depthwise_any, kIntegerDepthwiseThreads, IntegerDepthwiseArgs, x, w, columns,
          residual, table, y)
KERNEL_OF(integer_depthwise_3x3, (depthwise_square<3, 1>), kIntegerDepthwiseThreads, IntegerDepthwiseArgs, x,
          w, columns, residual, table, y)
KERNEL_OF(integer_depthwise_3x3_stride_2, (depthwise_square<3, 2>), kIntegerDepthwiseThreads,
          IntegerDepthwiseArgs, x, w, columns, residual, table, y)
KERNEL_OF(integer_depthwise_5x5, (depthwise_square<5, 1>), kIntegerDepthwiseThreads, IntegerDepthwiseArgs, x,
          w, columns, residual, table, y)
KERNEL_OF(integer_depthwise_5x5_stride_2, (depthwise_square<5, 2>), kIntegerDepthwiseThreads,
          IntegerDepthwiseArgs, x, w, columns, residual, table, y)
