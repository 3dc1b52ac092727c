// Depthwise Conv in float16 and channels last, with its epilogue: y = act(conv(x, w) + bias + r).
//
// Memory-bound: X is read once (overlaps of windows come from the cache) and Y is written once, 16 bytes for each
// work-item and instruction. A work-item loads the weights of a tap once for all pixels of its strip.
// scripts/gpu_session.py measures it in MobileNetV2. Launch: operators/conv/convolution/plan.cpp.
#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "operators/conv/convolution/depthwise_args.h"

namespace graphopt::hip {

// kSide: side of a square window; 0: any window.
template <int kSide>
DEVICE void depthwise(const DepthwiseArgs& args) {
  const half_t *x = args.x, *w = args.w, *bias = args.bias, *residual = args.residual;
  half_t* y = args.y;
  constexpr int kSize = Pack<half_t>::kSize;
  const ConvWindow& p = args.window;
  const uint32_t i = work_item(kDepthwiseThreads);
  if (i >= args.total) return;
  const uint32_t strip_of_all = divide(i, args.packs), channel = (i - strip_of_all * args.packs.d) * kSize;
  const uint32_t row_of_all = divide(strip_of_all, args.strips);
  const uint32_t image = divide(row_of_all, args.rows);
  const int row = static_cast<int>(row_of_all - image * args.rows.d);
  const int first = static_cast<int>(strip_of_all - row_of_all * args.strips.d) * kDepthwiseStrip;
  const auto channels = static_cast<size_t>(args.channels);
  const half_t* const from =
      x + static_cast<size_t>(image) * static_cast<size_t>(args.H) * static_cast<size_t>(args.W) * channels +
      channel;
  const int kernel_h = kSide > 0 ? kSide : p.kernel_h, kernel_w = kSide > 0 ? kSide : p.kernel_w;
  const int taps = kernel_h * kernel_w;
  const half_t* const weights = w + static_cast<size_t>(channel) * static_cast<size_t>(taps);

  float sum[kDepthwiseStrip][kSize] = {};
  const auto add_tap = [&](int r, int s, const float (&factor)[kSize]) {
    const int h = row * p.stride_h - p.top + r * p.dilation_h;
    if (h < 0 || h >= args.H) return;
    UNROLL for (int k = 0; k < kDepthwiseStrip; ++k) {
      const int column = (first + k) * p.stride_w - p.left + s * p.dilation_w;
      if (column < 0 || column >= args.W) continue;
      const Pack<half_t> in = load_pack(from + static_cast<size_t>(h * args.W + column) * channels);
      UNROLL for (int j = 0; j < kSize; ++j) sum[k][j] += to_float(in.v[j]) * factor[j];
    }
  };
  float factor[kSize];
  if constexpr (kSide > 0) {
    // The weights of the 8 channels fill entire packs.
    constexpr int kTaps = kSide * kSide;
    Pack<half_t> packs[kTaps];
    UNROLL for (int i = 0; i < kTaps; ++i) packs[i] = load_pack(weights + i * kSize);
    UNROLL for (int tap = 0; tap < kTaps; ++tap) {
      UNROLL for (int j = 0; j < kSize; ++j) {
        factor[j] = to_float(packs[(j * kTaps + tap) / kSize].v[(j * kTaps + tap) % kSize]);
      }
      add_tap(tap / kSide, tap % kSide, factor);
    }
  } else {
    for (int r = 0; r < kernel_h; ++r) {
      for (int s = 0; s < kernel_w; ++s) {
        UNROLL for (int j = 0; j < kSize; ++j) factor[j] = to_float(weights[j * taps + r * kernel_w + s]);
        add_tap(r, s, factor);
      }
    }
  }
  const Pack<half_t> shift = load_pack(bias + channel);
  UNROLL for (int k = 0; k < kDepthwiseStrip; ++k) {
    if (first + k >= args.OW) return;
    const size_t at =
        (static_cast<size_t>(row_of_all) * static_cast<size_t>(args.OW) + static_cast<size_t>(first + k)) *
            channels +
        channel;
    UNROLL for (int j = 0; j < kSize; ++j) sum[k][j] += to_float(shift.v[j]);
    if (residual != nullptr) {
      const Pack<half_t> add = load_pack(residual + at);
      UNROLL for (int j = 0; j < kSize; ++j) sum[k][j] += to_float(add.v[j]);
    }
    activate(args.act, sum[k]);
    Pack<half_t> out;
    UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = from_float<half_t>(sum[k][j]);
    store_pack(y + at, out);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL_OF(depthwise_f16, depthwise<0>, kDepthwiseThreads, DepthwiseArgs, x, w, bias, residual, y)
KERNEL_OF(depthwise_3x3_f16, depthwise<3>, kDepthwiseThreads, DepthwiseArgs, x, w, bias, residual, y)
