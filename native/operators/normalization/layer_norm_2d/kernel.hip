// FusedLayerNorm2d: y = (x - mean) / sqrt(variance + epsilon) gamma[c] + beta[c], with float32 mean and
// variance over the channels of a pixel.
//
// Bound by memory. A work-group processes adjacent pixels, or pairs of pixels, and loads complete memory
// sectors. A work-item processes a slice of the channels of a pixel or pair. X is read once if the slice fits into
// registers; otherwise it is read three times, twice from a cache. About 8 FLOPs per element.
// Launch: operators/normalization/layer_norm_2d/plan.cpp.
#include "blocks/gpu/vec.h"
#include "operators/normalization/layer_norm_2d/args.h"

namespace graphopt::hip {

template <int kSlices, int kWidth>
struct LayerNorm2dLds {
  static constexpr int kPixels =
      kLayerNorm2dThreads / kSlices;  // pixels, or pairs of pixels, of a work-group
  using Sums = Vec<float, kWidth>;
  Sums first[kSlices][kPixels];
  Sums second[kSlices][kPixels];
};

// kMaxChannels: the channels of a pixel that fit into the registers of its work-items; 0: none are kept there. kWidth:
// adjacent pixels of a work-item.
template <class T, int kMaxChannels, int kSlices, int kWidth>
DEVICE void layer_norm_2d(const LayerNorm2dArgs& args) {
  constexpr int kKept = kMaxChannels / kSlices;  // channels of a slice
  SHARED(lds, LayerNorm2dLds<kSlices, kWidth>);
  using Values = Vec<T, kWidth>;
  using Sums = Vec<float, kWidth>;
  constexpr int kPixels = LayerNorm2dLds<kSlices, kWidth>::kPixels;
  const T *gamma = args.gamma, *beta = args.beta;
  const int pixel = thread_x() % kPixels, slice = thread_x() / kPixels;
  const uint32_t at = (static_cast<uint32_t>(block_x()) * kPixels + static_cast<uint32_t>(pixel)) * kWidth;
  const bool inside = at < args.pixels;
  // Work-items beyond the last pixel repeat it, to reach the barriers, and write nothing.
  const size_t image = static_cast<size_t>(args.first_image) + static_cast<size_t>(block_y());
  const size_t base = image * args.C * args.pixels + (inside ? at : args.pixels - kWidth);
  const T* x = static_cast<const T*>(args.x) + base;
  T* y = static_cast<T*>(args.y) + base;
  const size_t step = args.pixels;
  const auto own = static_cast<uint32_t>(slice);
  const auto sum_of = [&](Sums(&slices)[kSlices][kPixels], const Sums& part) {
    slices[slice][pixel] = part;
    barrier();
    Sums total = {};
    UNROLL for (int k = 0; k < kSlices; ++k) {
      UNROLL for (int w = 0; w < kWidth; ++w) total.v[w] += slices[k][pixel].v[w];
    }
    return total;
  };

  Values kept[kKept > 0 ? kKept : 1] = {};
  if constexpr (kKept > 0) {
    UNROLL for (int i = 0; i < kKept; ++i) {
      const uint32_t c = own + static_cast<uint32_t>(i) * kSlices;
      if (c < args.C) kept[i] = load_vec<kWidth>(x + c * step);
    }
  }
  // Calls f(channel, its elements) for the channels of the slice.
  const auto each = [&](const auto& f) {
    if constexpr (kKept > 0) {
      // Without opaque(), the compiler keeps the conditions of all channels in registers for the next call.
      const auto C = static_cast<uint32_t>(opaque(static_cast<int>(args.C)));
      UNROLL for (int i = 0; i < kKept; ++i) {
        const uint32_t c = own + static_cast<uint32_t>(i) * kSlices;
        if (c < C) f(c, kept[i]);
      }
    } else {
      for (uint32_t c = own; c < args.C; c += kSlices) f(c, load_vec<kWidth>(x + c * step));
    }
  };

  // The pivot is the first channel. Without it, a large mean would cost digits of the sum. Equal values have a variance
  // of exactly 0. Y may be X, so all work-items must read the pivot before one of them writes.
  const Values pivot = load_vec<kWidth>(x);
  Sums part = {};
  each([&](uint32_t, const Values& values) {
    UNROLL for (int w = 0; w < kWidth; ++w) part.v[w] += to_float(values.v[w]) - to_float(pivot.v[w]);
  });
  Sums mean = sum_of(lds.first, part);
  UNROLL for (int w = 0; w < kWidth; ++w) {
    mean.v[w] = to_float(pivot.v[w]) + mean.v[w] / static_cast<float>(args.C);
    part.v[w] = 0;
  }
  each([&](uint32_t, const Values& values) {
    UNROLL for (int w = 0; w < kWidth; ++w) {
      const float d = to_float(values.v[w]) - mean.v[w];
      part.v[w] += d * d;
    }
  });
  Sums scale = sum_of(lds.second, part);
  UNROLL for (int w = 0; w < kWidth; ++w) {
    scale.v[w] = rsqrt_exact(scale.v[w] / static_cast<float>(args.C) + args.epsilon);
  }
  if (!inside) return;
  each([&](uint32_t c, const Values& values) {
    const float g = to_float(gamma[c]), b = to_float(beta[c]);
    Values out;
    UNROLL for (int w = 0; w < kWidth; ++w) {
      out.v[w] = from_float<T>((to_float(values.v[w]) - mean.v[w]) * scale.v[w] * g + b);
    }
    store_vec(y + c * step, out);
  });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(layer_norm_2d, (layer_norm_2d<T, 0, kLayerNorm2dSlices, 1>), kLayerNorm2dThreads,
              LayerNorm2dArgs, x, gamma, beta, y)
FLOAT_KERNELS(layer_norm_2d_max_128, (layer_norm_2d<T, 128, kLayerNorm2dSlices, 1>), kLayerNorm2dThreads,
              LayerNorm2dArgs, x, gamma, beta, y)
FLOAT_KERNELS(layer_norm_2d_max_256, (layer_norm_2d<T, 256, kLayerNorm2dSlices, 1>), kLayerNorm2dThreads,
              LayerNorm2dArgs, x, gamma, beta, y)
FLOAT_KERNELS(layer_norm_2d_max_768, (layer_norm_2d<T, 768, kLayerNorm2dMax768Slices, 1>),
              kLayerNorm2dThreads, LayerNorm2dArgs, x, gamma, beta, y)
KERNEL_OF(layer_norm_2d_pairs_f16, (layer_norm_2d<half_t, 0, kLayerNorm2dSlices, 2>), kLayerNorm2dThreads,
          LayerNorm2dArgs, x, gamma, beta, y)
KERNEL_OF(layer_norm_2d_max_128_pairs_f16, (layer_norm_2d<half_t, 128, kLayerNorm2dSlices, 2>),
          kLayerNorm2dThreads, LayerNorm2dArgs, x, gamma, beta, y)
KERNEL_OF(layer_norm_2d_max_256_pairs_f16, (layer_norm_2d<half_t, 256, kLayerNorm2dSlices, 2>),
          kLayerNorm2dThreads, LayerNorm2dArgs, x, gamma, beta, y)
KERNEL_OF(layer_norm_2d_max_768_pairs_f16, (layer_norm_2d<half_t, 768, kLayerNorm2dMax768Slices, 2>),
          kLayerNorm2dThreads, LayerNorm2dArgs, x, gamma, beta, y)
