// Depthwise Conv in float16 and channels last, with its epilogue: y = act(conv(x, w) + bias + r).
//
// X is read about once from memory and Y is written once. At batch 1, the latency of the loads takes more time than the
// transfer. A work-item therefore has few outputs, and all its loads can start at once. Launch:
// operators/conv/convolution/plan.cpp.
#include "blocks/gpu/activation.h"
#include "blocks/gpu/vec.h"
#include "device/platform.h"
#include "operators/conv/convolution/depthwise_args.h"

namespace graphopt::hip {

// The strip of Y of a work-item: pixels of one row, from column `first` on.
struct DepthwiseStrip {
  uint32_t image, batch_row;  // batch_row: the row, counted over all images
  int row, first;
};

template <int kStrip>
DEVICE DepthwiseStrip depthwise_strip(const DepthwiseArgs& args, uint32_t strip) {
  const uint32_t batch_row = divide(strip, args.strips), image = divide(batch_row, args.rows);
  return {image, batch_row, static_cast<int>(batch_row - image * args.rows.d),
          static_cast<int>(strip - batch_row * args.strips.d) * kStrip};
}

// Adds bias and residual, activates and stores kSize channels of a strip.
template <int kStrip, int kSize>
DEVICE void finish_depthwise(const DepthwiseArgs& args, const DepthwiseStrip& strip, uint32_t channel,
                             float (&sum)[kStrip][kSize]) {
  using Channels = Vec<half_t, kSize>;
  const half_t* residual = args.residual;
  half_t* y = args.y;
  const Channels shift = load_vec<kSize>(static_cast<const half_t*>(args.bias) + channel);
  UNROLL for (int k = 0; k < kStrip; ++k) {
    if (strip.first + k >= args.OW) return;
    const size_t pixel = static_cast<size_t>(strip.batch_row) * static_cast<size_t>(args.OW) +
                         static_cast<size_t>(strip.first + k);
    const size_t at = pixel * args.channels + channel;
    UNROLL for (int j = 0; j < kSize; ++j) sum[k][j] += to_float(shift.v[j]);
    if (residual != nullptr) {
      const Channels add = load_vec<kSize>(residual + at);
      UNROLL for (int j = 0; j < kSize; ++j) sum[k][j] += to_float(add.v[j]);
    }
    activate(args.act, sum[k]);
    Channels out;
    UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = from_float<half_t>(sum[k][j]);
    store_vec(y + at, out);
  }
}

// Supports any window. A work-item computes kSize channels of a strip. kSize divides the number of channels.
template <int kSize>
DEVICE void depthwise_any(const DepthwiseArgs& args) {
  const half_t *x = args.x, *w = args.w;
  const ConvWindow& p = args.window;
  const uint32_t i = work_item(kDepthwiseThreads);
  if (i >= args.total) return;
  const uint32_t strip_index = divide(i, args.block), channel = (i - strip_index * args.block.d) * kSize;
  const DepthwiseStrip strip = depthwise_strip<kDepthwiseStrip>(args, strip_index);
  const auto channels = static_cast<size_t>(args.channels);
  const half_t* const from = x +
                             static_cast<size_t>(strip.image) * static_cast<size_t>(args.H) *
                                 static_cast<size_t>(args.W) * channels +
                             channel;
  const int taps = p.kernel_h * p.kernel_w;
  const half_t* const weights = w + static_cast<size_t>(channel) * static_cast<size_t>(taps);
  float sum[kDepthwiseStrip][kSize] = {}, factor[kSize];
  for (int r = 0; r < p.kernel_h; ++r) {
    const int h = strip.row * p.stride_h - p.top + r * p.dilation_h;
    if (h < 0 || h >= args.H) continue;
    for (int s = 0; s < p.kernel_w; ++s) {
      UNROLL for (int j = 0; j < kSize; ++j) factor[j] = to_float(weights[j * taps + r * p.kernel_w + s]);
      UNROLL for (int k = 0; k < kDepthwiseStrip; ++k) {
        const int column = (strip.first + k) * p.stride_w - p.left + s * p.dilation_w;
        if (column < 0 || column >= args.W) continue;
        const Vec<half_t, kSize> in =
            load_vec<kSize>(from + static_cast<size_t>(h * args.W + column) * channels);
        UNROLL for (int j = 0; j < kSize; ++j) sum[k][j] += to_float(in.v[j]) * factor[j];
      }
    }
  }
  finish_depthwise(args, strip, channel, sum);
}

template <int kSide>
struct DepthwiseLds {
  Vec<half_t, 2>
      w[kSide * kSide * (kDepthwisePairs + 1)];  // [taps][pairs of channels + 1] avoids bank conflicts
};

// Copies `count` weights from w [channels, kTaps] to LDS [kTaps, pitch], kSize at a time. `pitch` counts pairs of
// channels.
template <int kSize, int kTaps>
DEVICE void copy_depthwise_weights(const half_t* w, uint32_t count, uint32_t pitch, Vec<half_t, 2>* to) {
  for (uint32_t i = thread_x(); i < count / kSize; i += kDepthwiseThreads) {
    const Vec<half_t, kSize> from = load_vec<kSize>(w + i * kSize);
    UNROLL for (int j = 0; j < kSize; ++j) {
      const uint32_t at = i * kSize + j, channel = at / kTaps, tap = at - channel * kTaps;
      to[tap * pitch + channel / 2].v[channel % 2] = from.v[j];
    }
  }
}

// Supports kSide x kSide windows with stride kStride on both axes and without dilation. The number of channels is even.
// A work-group copies the weights of at most `pairs` pairs of channels to LDS. A work-item computes 2 channels of a
// strip.
template <int kSide, int kStride, int kStrip = kDepthwiseStrip>
DEVICE void depthwise(const DepthwiseArgs& args) {
  SHARED(lds, DepthwiseLds<kSide>);
  constexpr int kTaps = kSide * kSide, kPack = Pack<half_t>::kSize;
  const half_t *x = args.x, *w = args.w;
  const uint32_t pairs = args.block.d, pitch = pairs + 1,
                 first_channel = static_cast<uint32_t>(block_y()) * pairs * 2;
  w += static_cast<size_t>(first_channel) * kTaps;
  if (args.channels % kPack == 0) {
    copy_depthwise_weights<kPack, kTaps>(w, pairs * 2 * kTaps, pitch, lds.w);
  } else {
    const uint32_t left = args.channels - first_channel, channels = left < pairs * 2 ? left : pairs * 2;
    copy_depthwise_weights<2, kTaps>(w, channels * kTaps, pitch, lds.w);
  }
  barrier();
  const uint32_t strip_of_group = divide(static_cast<uint32_t>(thread_x()), args.block),
                 pair = thread_x() - strip_of_group * pairs,
                 strip_index = static_cast<uint32_t>(block_x()) * args.strips_per_group + strip_of_group;
  const uint32_t channel = first_channel + pair * 2;
  if (strip_of_group >= args.strips_per_group || strip_index >= args.total || channel >= args.channels)
    return;
  const DepthwiseStrip strip = depthwise_strip<kStrip>(args, strip_index);
  const int top = strip.row * kStride - args.window.top, left = strip.first * kStride - args.window.left;
  const half_t* const from =
      x + static_cast<size_t>(strip.image) * static_cast<size_t>(args.H * args.W) * args.channels + channel;
  constexpr int kColumns = (kStrip - 1) * kStride + kSide;
  struct Line {
    Vec<half_t, 2> pixel[kColumns];
  };
  const auto load = [&](int r) {
    const int h = top + r;
    const bool inside = h >= 0 && h < args.H;
    Line line = {};
    UNROLL for (int c = 0; c < kColumns; ++c) {
      const int column = left + c;
      if (inside && column >= 0 && column < args.W) {
        line.pixel[c] = load_vec<2>(from + static_cast<size_t>(h * args.W + column) * args.channels);
      }
    }
    return line;
  };
  float sum[kStrip][2] = {};
  const auto multiply = [&](const Line& line, int r) {
    UNROLL for (int s = 0; s < kSide; ++s) {
      const Vec<float, 2> factor = to_floats(lds.w[static_cast<uint32_t>(r * kSide + s) * pitch + pair]);
      UNROLL for (int k = 0; k < kStrip; ++k) {
        const Vec<float, 2> value = to_floats(line.pixel[k * kStride + s]);
        UNROLL for (int j = 0; j < 2; ++j) sum[k][j] += value.v[j] * factor.v[j];
      }
    }
  };
  if constexpr (kSide < 7) {
    UNROLL for (int r = 0; r < kSide; ++r) multiply(load(r), r);
  } else {
    // Loading all rows at once would take too many registers. Each row is loaded during the arithmetic of the previous
    // row.
    Line line = load(0);
    NO_UNROLL for (int r = 1; r < kSide; ++r) {
      const Line next = load(r);
      multiply(line, r - 1);
      line = next;
    }
    multiply(line, kSide - 1);
  }
  finish_depthwise(args, strip, channel, sum);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL_OF(depthwise_f16, depthwise_any<Pack<half_t>::kSize>, kDepthwiseThreads, DepthwiseArgs, x, w, bias,
          residual, y)
KERNEL_OF(depthwise_1_f16, depthwise_any<1>, kDepthwiseThreads, DepthwiseArgs, x, w, bias, residual, y)
KERNEL_OF(depthwise_3x3_f16, (depthwise<3, 1>), kDepthwiseThreads, DepthwiseArgs, x, w, bias, residual, y)
KERNEL_OF(depthwise_3x3_stride_2_f16, (depthwise<3, 2>), kDepthwiseThreads, DepthwiseArgs, x, w, bias,
          residual, y)
KERNEL_OF(depthwise_5x5_f16, (depthwise<5, 1>), kDepthwiseThreads, DepthwiseArgs, x, w, bias, residual, y)
KERNEL_OF(depthwise_5x5_long_f16, (depthwise<5, 1, kDepthwiseLongStrip>), kDepthwiseThreads, DepthwiseArgs, x,
          w, bias, residual, y)
KERNEL_OF(depthwise_5x5_stride_2_f16, (depthwise<5, 2>), kDepthwiseThreads, DepthwiseArgs, x, w, bias,
          residual, y)
KERNEL_OF(depthwise_7x7_f16, (depthwise<7, 1>), kDepthwiseThreads, DepthwiseArgs, x, w, bias, residual, y)
KERNEL_OF(depthwise_7x7_long_f16, (depthwise<7, 1, kDepthwiseLongStrip>), kDepthwiseThreads, DepthwiseArgs, x,
          w, bias, residual, y)
KERNEL_OF(depthwise_7x7_stride_2_f16, (depthwise<7, 2>), kDepthwiseThreads, DepthwiseArgs, x, w, bias,
          residual, y)
