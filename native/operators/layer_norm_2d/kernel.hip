// FusedLayerNorm2d: y = (x - mean) / sqrt(variance + epsilon) gamma[c] + beta[c], mean and variance over the
// channels of a pixel, in float32.
//
// Bound by memory. A work-group has kLayerNorm2dPixels pixels that lie side by side, so that each of its loads is
// of whole cache lines, and kLayerNorm2dSlices slices of the channels. X is read once where a work-item has
// registers for its channels, else three times, twice of them from a cache. About 8 FLOPs an element. Launch:
// operators/layer_norm_2d/plan.cpp.
#include "device/platform.h"
#include "operators/layer_norm_2d/args.h"

namespace graphopt::hip {

struct LayerNorm2dLds {
  float first[kLayerNorm2dSlices][kLayerNorm2dPixels];
  float second[kLayerNorm2dSlices][kLayerNorm2dPixels];
};

// kKept: so many channels of a slice stay in registers; 0: none.
template <class T, int kKept>
DEVICE void layer_norm_2d(const LayerNorm2dArgs& args, LayerNorm2dLds& lds) {
  const T *gamma = args.gamma, *beta = args.beta;
  const int pixel = thread_x() % kLayerNorm2dPixels, slice = thread_x() / kLayerNorm2dPixels;
  const uint32_t at = static_cast<uint32_t>(block_x()) * kLayerNorm2dPixels + static_cast<uint32_t>(pixel);
  const bool inside = at < args.pixels;
  // Those beyond the last pixel go along with it up to the barriers, and write nothing.
  const size_t image = static_cast<size_t>(args.first_image) + static_cast<size_t>(block_y());
  const size_t base = image * args.C * args.pixels + (inside ? at : args.pixels - 1);
  const T* x = static_cast<const T*>(args.x) + base;
  T* y = static_cast<T*>(args.y) + base;
  const size_t step = args.pixels;
  const auto own = static_cast<uint32_t>(slice);
  const auto sum_of = [&](float (&slices)[kLayerNorm2dSlices][kLayerNorm2dPixels], float part) {
    slices[slice][pixel] = part;
    barrier();
    float total = 0;
    UNROLL for (int k = 0; k < kLayerNorm2dSlices; ++k) total += slices[k][pixel];
    return total;
  };

  float kept[kKept > 0 ? kKept : 1];
  if constexpr (kKept > 0) {
    UNROLL for (int i = 0; i < kKept; ++i) {
      const uint32_t c = own + static_cast<uint32_t>(i) * kLayerNorm2dSlices;
      kept[i] = c < args.C ? to_float(x[c * step]) : 0.0f;
    }
  }
  // f(channel, value) of the slice
  const auto each = [&](const auto& f) {
    if constexpr (kKept > 0) {
      // Else the compiler keeps the conditions of all channels in registers for the next call.
      const auto C = static_cast<uint32_t>(opaque(static_cast<int>(args.C)));
      UNROLL for (int i = 0; i < kKept; ++i) {
        const uint32_t c = own + static_cast<uint32_t>(i) * kLayerNorm2dSlices;
        if (c < C) f(c, kept[i]);
      }
    } else {
      for (uint32_t c = own; c < args.C; c += kLayerNorm2dSlices) f(c, to_float(x[c * step]));
    }
  };

  // The first channel: with it a large mean costs no digits, and equal numbers give 0. Y may be X, so nobody
  // writes before all have read it.
  const float pivot = to_float(x[0]);
  float part = 0;
  each([&](uint32_t, float value) { part += value - pivot; });
  const float mean = pivot + sum_of(lds.first, part) / static_cast<float>(args.C);
  part = 0;
  each([&](uint32_t, float value) {
    const float d = value - mean;
    part += d * d;
  });
  const float scale = rsqrt_exact(sum_of(lds.second, part) / static_cast<float>(args.C) + args.epsilon);
  if (!inside) return;
  each([&](uint32_t c, float value) {
    y[c * step] = from_float<T>((value - mean) * scale * to_float(gamma[c]) + to_float(beta[c]));
  });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define LAYER_NORM_2D_KERNEL(T, kKept, suffix)                                              \
  KERNEL(layer_norm_2d_##suffix, kLayerNorm2dThreads, LayerNorm2dArgs, x, gamma, beta, y) { \
    SHARED(LayerNorm2dLds, lds);                                                            \
    layer_norm_2d<T, kKept>(args, lds);                                                     \
  }
#define LAYER_NORM_2D_KERNELS(T, suffix)                   \
  LAYER_NORM_2D_KERNEL(T, 0, suffix)                       \
  LAYER_NORM_2D_KERNEL(T, kLayerNorm2dFew, few_##suffix)   \
  LAYER_NORM_2D_KERNEL(T, kLayerNorm2dSome, some_##suffix) \
  LAYER_NORM_2D_KERNEL(T, kLayerNorm2dMany, many_##suffix)

LAYER_NORM_2D_KERNELS(float, f32)
LAYER_NORM_2D_KERNELS(half_t, f16)
