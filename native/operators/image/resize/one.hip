// Resize along one axis: copies elements of any type, or sums adjacent elements with linear or cubic weights. For
// downsampling with antialias, the weights cover a wider part of X. Each axis takes one launch; axes that shrink come
// first. Results that one launch passes to the next are float.
//
// Bound by memory. Cubic weights: Keys, "Cubic convolution interpolation for digital image processing", 1981.
#include "operators/image/resize/coordinates.h"

namespace graphopt::hip {

struct ResizePosition {
  uint32_t outer, inner;
  int at;  // index along the axis of y
};

DEVICE ResizePosition position_of(const ResizeOneArgs& args, uint32_t i) {
  const uint32_t line = divide(i, args.inner), outer = divide(line, args.out);
  return {outer, i - line * args.inner.d, static_cast<int>(line - outer * args.out.d)};
}

DEVICE bool is_outside(const ResizeOneArgs& args, float x) {
  return args.crops != 0 && !(x >= 0 && x <= static_cast<float>(args.axis.in - 1));
}

template <class T>
DEVICE void resize_nearest(const ResizeOneArgs& args) {
  const T* const x = args.x;
  T* const y = args.y;
  const uint32_t i = work_item(kResizeThreads);
  if (i >= args.total) return;
  const ResizePosition position = position_of(args, i);
  const float from = source(args.axis, position.at);
  if (is_outside(args, from)) {
    y[i] = static_cast<T>(args.outside);
    return;
  }
  const auto line = static_cast<uint32_t>(nearest(args.axis, from, args.mode));
  y[i] = x[(position.outer * static_cast<uint32_t>(args.axis.in) + line) * args.inner.d + position.inner];
}

DEVICE float resize_weight(const ResizeOneArgs& args, float distance) {
  const float d = distance < 0 ? -distance : distance, a = args.cubic;
  if (args.mode == Interpolation::kLinear) return d < 1 ? 1 - d : 0;
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

template <class X, class Y>
DEVICE void resize_interpolate(const ResizeOneArgs& args) {
  const X* const x = args.x;
  Y* const y = args.y;
  const uint32_t i = work_item(kResizeThreads);
  if (i >= args.total) return;
  const ResizePosition position = position_of(args, i);
  const float from = source(args.axis, position.at);
  if (is_outside(args, from)) {
    y[i] = from_float<Y>(bit_cast<float>(static_cast<uint32_t>(args.outside)));
    return;
  }
  const X* const line =
      x + position.outer * static_cast<uint32_t>(args.axis.in) * args.inner.d + position.inner;
  const auto base = static_cast<int>(floor_of(from));
  const float fraction = from - static_cast<float>(base);
  float sum = 0, weights = 0;
  NO_UNROLL for (int k = 1 - args.reach; k <= args.reach; ++k) {
    const int at = max_int(0, min_int(base + k, args.axis.in - 1));
    if (args.inside_only != 0 && at != base + k) continue;
    const float weight = resize_weight(args, (static_cast<float>(k) - fraction) * args.narrow);
    // An element with weight 0 may be infinite, and its product with 0 would be NaN.
    if (weight == 0) continue;
    weights += weight;
    sum += weight * to_float(line[static_cast<uint32_t>(at) * args.inner.d]);
  }
  y[i] = from_float<Y>(args.normalized != 0 ? sum / weights : sum);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

BITS_KERNELS(resize_nearest, resize_nearest<T>, kResizeThreads, ResizeOneArgs, x, y)

FLOAT_KERNELS(resize_interpolate, (resize_interpolate<T, T>), kResizeThreads, ResizeOneArgs, x, y)
KERNEL_OF(resize_interpolate_f16_f32, (resize_interpolate<half_t, float>), kResizeThreads, ResizeOneArgs, x,
          y)
KERNEL_OF(resize_interpolate_f32_f16, (resize_interpolate<float, half_t>), kResizeThreads, ResizeOneArgs, x,
          y)
