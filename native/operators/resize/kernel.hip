// Resize of H and W of x [planes, H, W], nearest and linear: a work-item for some neighbouring outputs.
//
// Bound by memory: X is read once (linear: four times, three of them from the cache) and Y written once, for
// 8 FLOPs an element where linear. scripts/gpu_bench.py sets it beside a copy.
#include "blocks/gpu/channels_last.h"
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

// Where a row or a column of y comes from: for other than linear from `low` alone.
DEVICE Between from_where(const ResizeAxis& a, int at, Coordinates coordinates, Interpolation how) {
  const float x = source(a, at, coordinates);
  if (how == Interpolation::kLinear) return between(a, x);
  const int low = nearest(a, x, how);
  return {low, low, 0};
}

// kResizeColumns neighbours of a row each, and args.rows_each rows: where columns come from is found once.
template <class T>
DEVICE void resize(const ResizeArgs& args) {
  const uint32_t i = work_item(kResizeThreads);
  if (i >= args.items) return;
  const ResizeAxis &rows = args.rows, &columns = args.columns;
  const uint32_t strip = divide(i, args.across), plane = divide(strip, args.down);
  const int first_column = static_cast<int>(i - strip * args.across.d) * kResizeColumns,
            first_row = static_cast<int>(strip - plane * args.down.d) * args.rows_each;
  const T* const from = static_cast<const T*>(args.x) + static_cast<size_t>(plane) *
                                                            static_cast<size_t>(rows.in) *
                                                            static_cast<size_t>(columns.in);
  T* const to = static_cast<T*>(args.y) +
                static_cast<size_t>(plane) * static_cast<size_t>(rows.out) * static_cast<size_t>(columns.out);
  Between c[kResizeColumns];
  UNROLL for (int k = 0; k < kResizeColumns; ++k) {
    c[k] = from_where(columns, min_int(first_column + k, columns.out - 1), args.coordinates, args.how);
  }
  const int end = min_int(first_row + args.rows_each, rows.out);
  NO_UNROLL for (int row = first_row; row < end; ++row) {
    const Between r = from_where(rows, row, args.coordinates, args.how);
    const T* const low = from + static_cast<ptrdiff_t>(r.low) * columns.in;
    const T* const high = from + static_cast<ptrdiff_t>(r.high) * columns.in;
    T out[kResizeColumns];
    if (args.how == Interpolation::kLinear) {
      UNROLL for (int k = 0; k < kResizeColumns; ++k) {
        const float top = to_float(low[c[k].low]) * (1 - c[k].part) + to_float(low[c[k].high]) * c[k].part;
        const float bottom =
            to_float(high[c[k].low]) * (1 - c[k].part) + to_float(high[c[k].high]) * c[k].part;
        out[k] = from_float<T>(top * (1 - r.part) + bottom * r.part);
      }
    } else {
      UNROLL for (int k = 0; k < kResizeColumns; ++k) out[k] = low[c[k].low];
    }
    T* const y = to + static_cast<ptrdiff_t>(row) * columns.out + first_column;
    struct alignas(kResizeColumns * sizeof(T)) Columns {
      T v[kResizeColumns];
    };
    if (args.packs != 0) {
      Columns all;
      UNROLL for (int k = 0; k < kResizeColumns; ++k) all.v[k] = out[k];
      *reinterpret_cast<Columns*>(y) = all;
    } else {
      UNROLL for (int k = 0; k < kResizeColumns; ++k) {
        if (first_column + k < columns.out) y[k] = out[k];
      }
    }
  }
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
  using Values = Channels<kSize>;
  const auto at = [&](int hh, int ww) {
    return load_channels<kSize>(x + static_cast<size_t>(hh * columns.in + ww) * args.channels);
  };
  const Between r = from_where(rows, static_cast<int>(row), args.coordinates, args.how),
                c = from_where(columns, static_cast<int>(column), args.coordinates, args.how);
  Values out = at(r.low, c.low);
  if (args.how == Interpolation::kLinear) {
    const Values right = at(r.low, c.high), below = at(r.high, c.low), high = at(r.high, c.high);
    UNROLL for (int j = 0; j < kSize; ++j) {
      const float top = to_float(out.v[j]) * (1 - c.part) + to_float(right.v[j]) * c.part;
      const float bottom = to_float(below.v[j]) * (1 - c.part) + to_float(high.v[j]) * c.part;
      out.v[j] = from_float<half_t>(top * (1 - r.part) + bottom * r.part);
    }
  }
  store_channels(to, out);
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
