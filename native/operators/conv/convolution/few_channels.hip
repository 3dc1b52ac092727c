// Pointwise Conv of at most 16 channels and filters in channels first: y[m] = bias[m] + sum of w[m][c] x[c].
//
// X is read once and Y is written once. A GEMM would compute tiles with more rows than there are filters, and would
// need another launch for the bias. A work-item loads all channels of kWidth pixels at once. Launch:
// operators/conv/convolution/plan.cpp.
#include "blocks/gpu/vec.h"
#include "device/platform.h"
#include "operators/conv/convolution/few_channels_args.h"

namespace graphopt::hip {

template <class T, int kWidth>
DEVICE void few_channels(const FewChannelsArgs& args) {
  const T *x = args.x, *w = args.w, *bias = args.bias;
  T* y = args.y;
  const uint32_t i = work_item(kFewChannelsThreads);
  if (i >= args.total) return;
  const uint32_t image = divide(i, args.vectors), pixel = (i - image * args.vectors.d) * kWidth;
  const auto plane = static_cast<size_t>(args.plane);
  const T* const from = x + static_cast<size_t>(image) * static_cast<size_t>(args.C) * plane + pixel;
  T* const to = y + static_cast<size_t>(image) * static_cast<size_t>(args.M) * plane + pixel;
  float value[kFewChannels][kWidth];
  UNROLL for (int c = 0; c < kFewChannels; ++c) {
    Vec<T, kWidth> in = {};
    if (c < args.C) in = load_vec<kWidth>(from + static_cast<size_t>(c) * plane);
    UNROLL for (int j = 0; j < kWidth; ++j) value[c][j] = to_float(in.v[j]);
  }
  NO_UNROLL for (int m = 0; m < args.M; ++m) {
    const T* const filter = w + m * args.C;
    const float shift = bias != nullptr ? to_float(bias[m]) : 0.0f;
    float sum[kWidth] = {};
    UNROLL for (int c = 0; c < kFewChannels; ++c) {
      const float factor = c < args.C ? to_float(filter[c]) : 0.0f;
      UNROLL for (int j = 0; j < kWidth; ++j) sum[j] = fused_multiply_add(value[c][j], factor, sum[j]);
    }
    Vec<T, kWidth> out;
    UNROLL for (int j = 0; j < kWidth; ++j) out.v[j] = from_float<T>(sum[j] + shift);
    store_vec(to + static_cast<size_t>(m) * plane, out);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(few_channels_1, (few_channels<T, 1>), kFewChannelsThreads, FewChannelsArgs, x, w, bias, y)
FLOAT_KERNELS(few_channels_4, (few_channels<T, kFewChannelsVector>), kFewChannelsThreads, FewChannelsArgs, x,
              w, bias, y)
