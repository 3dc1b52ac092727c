// Resize of H and W of x [planes, H, W], nearest and linear: a work-item for each output.
//
// Bound by memory: X is read once (linear: four times, three of them from the cache) and Y written once, for
// 8 FLOPs an element where linear. scripts/gpu_bench.py sets it beside a copy.
#include "operators/resize/coordinates.h"

namespace graphopt::hip {

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
  const uint32_t i = work_item(kResizeThreads);
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

template <int kSize>
DEVICE void resize_channels_last(const ResizeChannelsLastArgs& args) {
  const ResizeAxis &rows = args.rows, &columns = args.columns;
  const uint32_t i = work_item(kResizeThreads);
  if (i >= args.total) return;
  const uint32_t pixel = divide(i, args.packs), channel = (i - pixel * args.packs.d) * kSize;
  const uint32_t image = divide(pixel, args.per_image), rest = pixel - image * args.per_image.d;
  const uint32_t row = divide(rest, args.across), column = rest - row * args.across.d;
  const half_t* const x = static_cast<const half_t*>(args.x) +
                          static_cast<size_t>(image) * static_cast<size_t>(rows.in) *
                              static_cast<size_t>(columns.in) * args.channels +
                          channel;
  half_t* const to = static_cast<half_t*>(args.y) + static_cast<size_t>(pixel) * args.channels + channel;
  struct Values {
    half_t v[kSize];
  };
  const auto at = [&](int hh, int ww) {
    const half_t* const from = x + static_cast<size_t>(hh * columns.in + ww) * args.channels;
    Values values;
    if constexpr (kSize == 8) {
      const Pack<half_t> pack = load_pack(from);
      UNROLL for (int j = 0; j < kSize; ++j) values.v[j] = pack.v[j];
    } else {
      values.v[0] = *from;
    }
    return values;
  };
  const float h = source(rows, static_cast<int>(row), args.coordinates);
  const float w = source(columns, static_cast<int>(column), args.coordinates);
  Values out;
  if (args.how != Interpolation::kLinear) {
    out = at(nearest(rows, h, args.how), nearest(columns, w, args.how));
  } else {
    const Between r = between(rows, h), c = between(columns, w);
    const Values low = at(r.low, c.low), right = at(r.low, c.high), below = at(r.high, c.low),
                 high = at(r.high, c.high);
    UNROLL for (int j = 0; j < kSize; ++j) {
      const float top = to_float(low.v[j]) * (1 - c.part) + to_float(right.v[j]) * c.part;
      const float bottom = to_float(below.v[j]) * (1 - c.part) + to_float(high.v[j]) * c.part;
      out.v[j] = from_float<half_t>(top * (1 - r.part) + bottom * r.part);
    }
  }
  if constexpr (kSize == 8) {
    Pack<half_t> pack;
    UNROLL for (int j = 0; j < kSize; ++j) pack.v[j] = out.v[j];
    store_pack(to, pack);
  } else {
    *to = out.v[0];
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define RESIZE_KERNEL(T, suffix) \
  KERNEL(resize_##suffix, kResizeThreads, ResizeArgs, x, y) { resize<T>(args); }

RESIZE_KERNEL(float, f32)
RESIZE_KERNEL(half_t, f16)

#define RESIZE_CHANNELS_LAST_KERNEL(size)                                                   \
  KERNEL(resize_channels_last_##size##_f16, kResizeThreads, ResizeChannelsLastArgs, x, y) { \
    resize_channels_last<size>(args);                                                       \
  }

RESIZE_CHANNELS_LAST_KERNEL(8)
RESIZE_CHANNELS_LAST_KERNEL(1)
