// Convolutions of int8 elements in channels last.
//
// integer_conv_*: implicit GEMMs on the matrix units, like conv_last_* in float16 (operators/conv/convolution/channels_last.hip)
// with the operands and the epilogue of gemm.hip. Compute-bound. integer_depthwise: one filter for each channel, on the
// vector unit. Bound by memory: x is read once (overlaps of windows come from the cache) and y is written once, 8 bytes
// for each work-item and instruction. Launch: plan.cpp.
#include "device/platform.h"
#include "gemm/integer_epilogue.h"
#include "gemm/kernels.h"
#include "gemm/loaders/dense.h"
#include "gemm/loaders/im2col.h"
#include "gemm/pipelines/aligned.h"
#include "operators/matmul/integer_product/args.h"

namespace graphopt::hip {

template <GemmTile kTile>
using IntegerGemm = AlignedGemm<kTile, false, Int8Pair>;

// The arguments as Im2col reads them.
struct IntegerPatches {
  In x;
  const IntegerColumnsHeader* header;
  int32_t M, H, W;
  Divisor channels, kernel_w, per_image, columns;
  ConvWindow window;

  DEVICE explicit IntegerPatches(const IntegerConvArgs& args)
      : x(args.x),
        header(args.columns),
        M(args.M),
        H(args.H),
        W(args.W),
        channels(args.channels),
        kernel_w(args.kernel_w),
        per_image(args.per_image),
        columns(args.columns_of_y),
        window(args.window) {}
  DEVICE const half_t* outside() const { return reinterpret_cast<const half_t*>(header->outside); }
};

template <class P>
DEVICE void integer_conv(const IntegerConvArgs& args) {
  LARGE_SHARED(lds, typename P::Lds);
  const half_t* w = args.w;
  const int part = block_z();
  const int first_k = part * args.splits.depth;
  const int depth = min_int(args.splits.depth, args.K - first_k);
  const TilePosition place = tile_position(args.across, args.down);
  const int first_m = place.down * P::kM, first_n = place.across * P::kN;
  const IntegerPatches patches(args);
  Im2col<P, IntegerPatches> left(patches, first_m, first_k, depth);
  DenseRows<P::kAsyncCopies, P::kN, P::kDepth, P::kThreads, Im2colRows<P>::kGroups> right(
      w + static_cast<ptrdiff_t>(first_n) * args.K + first_k, args.K, args.N - first_n, depth);
  typename P::Product product;
  product.inverted_bits = args.epilogue.inverted_bits;
  multiply_aligned<P>(product, lds, depth, left, right);
  store_integer_tile<P>(args, lds, product, nullptr, static_cast<uint32_t>(part), 0, 0, 0, first_m, first_n);
}

// The elements of a pack, as signed bytes.
struct SignedPack {
  uint64_t bytes;

  DEVICE SignedPack(const uint8_t* from, uint32_t inverted_bits)
      : bytes(*reinterpret_cast<const uint64_t*>(from) ^
              (static_cast<uint64_t>(inverted_bits) << 32 | inverted_bits)) {}
  DEVICE int32_t operator[](int i) const { return static_cast<int8_t>(bytes >> 8 * i); }
};

}  // namespace graphopt::hip

using namespace graphopt::hip;

#if GRAPHOPT_MATRIX_F16
// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define INTEGER_CONV_KERNEL(name, dense, halo, packed, groups, ...)                                        \
  GEMM_ON_##dense(KERNEL_OF(integer_conv_##name##_i8, integer_conv<IntegerGemm<GemmTile::kAligned##name>>, \
                            (IntegerGemm<GemmTile::kAligned##name>::kBounds), IntegerConvArgs, x, w,       \
                            columns, residual, table, y, partial))
GEMM_ALIGNED_TILES(INTEGER_CONV_KERNEL)
#endif

KERNEL(integer_depthwise, kIntegerDepthwiseThreads, IntegerDepthwiseArgs, x, w, columns, residual, table, y) {
  const uint8_t *x = args.x, *w = args.w;
  const IntegerColumnsHeader* header = args.columns;
  const ConvWindow& p = args.window;
  const uint32_t i = work_item(kIntegerDepthwiseThreads);
  if (i >= args.total) return;
  const uint32_t strip_of_all = divide(i, args.packs);
  const int channel = static_cast<int>(i - strip_of_all * args.packs.d) * kIntegerPack;
  const uint32_t row_of_all = divide(strip_of_all, args.strips), image = divide(row_of_all, args.rows);
  const int row = static_cast<int>(row_of_all - image * args.rows.d);
  const int first = static_cast<int>(strip_of_all - row_of_all * args.strips.d) * kIntegerDepthwiseStrip;
  const auto channels = static_cast<size_t>(args.channels);
  const uint32_t inverted_bits = args.epilogue.inverted_bits;
  const uint8_t* const from =
      x + static_cast<size_t>(image) * static_cast<size_t>(args.H) * static_cast<size_t>(args.W) * channels +
      channel;
  const auto* const outside = reinterpret_cast<const uint8_t*>(header->outside);
  int32_t sums[kIntegerDepthwiseStrip][kIntegerPack] = {};
  for (int r = 0; r < p.kernel_h; ++r) {
    const int h = row * p.stride_h - p.top + r * p.dilation_h;
    const bool is_row = static_cast<uint32_t>(h) < static_cast<uint32_t>(args.H);
    for (int s = 0; s < p.kernel_w; ++s) {
      const SignedPack factor(
          w + static_cast<size_t>(r * p.kernel_w + s) * static_cast<size_t>(args.row) + channel, 0);
      UNROLL for (int k = 0; k < kIntegerDepthwiseStrip; ++k) {
        const int column = (first + k) * p.stride_w - p.left + s * p.dilation_w;
        const bool inside = is_row && static_cast<uint32_t>(column) < static_cast<uint32_t>(args.W);
        const SignedPack in(inside ? from + static_cast<size_t>(h * args.W + column) * channels : outside,
                            inverted_bits);
        UNROLL for (int j = 0; j < kIntegerPack; ++j) sums[k][j] += in[j] * factor[j];
      }
    }
  }
  const IntegerColumns column(args, 0, false, channel, args.channels);
  const size_t first_pixel =
      static_cast<size_t>(row_of_all) * static_cast<size_t>(args.OW) + static_cast<size_t>(first);
  const auto at = [&](int k) {
    return (first_pixel + static_cast<size_t>(k)) * channels + static_cast<size_t>(channel);
  };
  IntegerBytes added[kIntegerDepthwiseStrip] = {};
  UNROLL for (int k = 0; k < kIntegerDepthwiseStrip; ++k) {
    if (first + k < args.OW) added[k] = column.load_residual(at(k));
  }
  UNROLL for (int k = 0; k < kIntegerDepthwiseStrip; ++k) {
    if (first + k >= args.OW) return;
    column.finish(sums[k], 0, added[k]);
    column.store(at(k), sums[k]);
  }
}
