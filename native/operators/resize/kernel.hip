// Resize of H and W of x [planes, H, W], nearest and linear: a work-item for each output.
//
// Bound by memory: X is read once (linear: four times, three of them from the cache) and Y written once, for
// 8 FLOPs an element where linear. scripts/gpu_bench.py sets it beside a copy.
#include "device/platform.h"
#include "operators/resize/args.h"

namespace graphopt::hip {

DEVICE float floor_of(float x) {
  const auto whole = static_cast<float>(static_cast<int32_t>(x));
  return whole > x ? whole - 1.0f : whole;
}

DEVICE float source(const ResizeAxis& a, int at, Coordinates coordinates) {
  const auto x = static_cast<float>(at);
  switch (coordinates) {
    case Coordinates::kPytorchHalfPixel:
      if (a.out <= 1) return 0;
      return (x + 0.5f) / a.scale - 0.5f;
    case Coordinates::kHalfPixel:
      return (x + 0.5f) / a.scale - 0.5f;
    case Coordinates::kAlignCorners:
      return a.out <= 1 ? 0 : x * static_cast<float>(a.in - 1) / static_cast<float>(a.out - 1);
    default:
      return x / a.scale;
  }
}

DEVICE int nearest(const ResizeAxis& a, float x, Interpolation how) {
  float at = floor_of(x);
  const float part = x - at;
  if (how == Interpolation::kCeil) {
    at += part > 0 ? 1 : 0;
  } else if (how == Interpolation::kRoundPreferFloor) {
    at += part > 0.5f ? 1 : 0;
  } else if (how == Interpolation::kRoundPreferCeil) {
    at += part >= 0.5f ? 1 : 0;
  }
  return max_int(0, min_int(static_cast<int>(at), a.in - 1));
}

struct Between {
  int low, high;
  float part;
};

DEVICE Between between(const ResizeAxis& a, float x) {
  x = x < 0 ? 0 : x;
  const int low = min_int(static_cast<int>(x), a.in - 1);
  const int high = min_int(low + 1, a.in - 1);
  const float part = x - static_cast<float>(low);
  return {low, high, part > 1 ? 1 : part};
}

template <class T>
DEVICE void resize(const ResizeArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const Divisor &per_plane = args.per_plane, &across = args.across;
  const ResizeAxis &rows = args.rows, &columns = args.columns;
  const uint32_t i = static_cast<uint32_t>(block_x()) * kResizeThreads + static_cast<uint32_t>(thread_x());
  if (i >= args.total) return;
  const uint32_t plane = divide(i, per_plane), rest = i - plane * per_plane.d;
  const uint32_t row = divide(rest, across), column = rest - row * across.d;
  const T* from =
      x + static_cast<size_t>(plane) * static_cast<size_t>(rows.in) * static_cast<size_t>(columns.in);
  const float h = source(rows, static_cast<int>(row), args.coordinates);
  const float w = source(columns, static_cast<int>(column), args.coordinates);
  if (args.how != Interpolation::kLinear) {
    y[i] = from[nearest(rows, h, args.how) * columns.in + nearest(columns, w, args.how)];
    return;
  }
  const Between r = between(rows, h), c = between(columns, w);
  const auto at = [&](int hh, int ww) { return to_float(from[hh * columns.in + ww]); };
  const float top = at(r.low, c.low) * (1 - c.part) + at(r.low, c.high) * c.part;
  const float bottom = at(r.high, c.low) * (1 - c.part) + at(r.high, c.high) * c.part;
  y[i] = from_float<T>(top * (1 - r.part) + bottom * r.part);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define RESIZE_KERNEL(T, suffix) \
  KERNEL(resize_##suffix, kResizeThreads, ResizeArgs, x, y) { resize<T>(args); }

RESIZE_KERNEL(float, f32)
RESIZE_KERNEL(half_t, f16)
