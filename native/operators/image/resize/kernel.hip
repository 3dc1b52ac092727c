// Resize of H and W of x [planes, H, W], nearest and linear. A work-item computes a pack of adjacent outputs
// in one or more rows.
//
// Bound by memory: X is read once from memory and Y is written once. A linear output reads four elements of X, mostly
// from the cache, and takes about 10 FLOPs. scripts/gpu_bench.py compares the kernel with a copy.
#include "blocks/gpu/channels_last.h"
#include "operators/image/resize/coordinates.h"

namespace graphopt::hip {

// Two neighbouring rows or columns of X, and the weight of the higher one.
struct Neighbours {
  int low, high;
  float weight;
};

DEVICE Neighbours neighbours_of(const SourceAxis& a, float x) {
  x = x < 0 ? 0 : x;
  const int low = min_int(static_cast<int>(x), a.in - 1);
  const int high = min_int(low + 1, a.in - 1);
  const float weight = x - static_cast<float>(low);
  return {low, high, weight > 1 ? 1 : weight};
}

// Returns the sources of a row or column of y; without linear interpolation only `low` is used.
DEVICE Neighbours sources_of(const SourceAxis& a, int at, Interpolation mode) {
  const float x = source(a, at);
  if (mode == Interpolation::kLinear) return neighbours_of(a, x);
  const int low = nearest(a, x, mode);
  return {low, low, 0};
}

// Computes a pack of adjacent elements in each of args.rows_each rows. The sources of the columns are computed once.
template <class T>
DEVICE void resize(const ResizeArgs& args) {
  constexpr int kColumns = Pack<T>::kSize;
  const uint32_t i = work_item(kResizeThreads);
  if (i >= args.items) return;
  const SourceAxis &rows = args.rows, &columns = args.columns;
  const uint32_t strip = divide(i, args.across), plane = divide(strip, args.down);
  const int first_column = static_cast<int>(i - strip * args.across.d) * kColumns,
            first_row = static_cast<int>(strip - plane * args.down.d) * args.rows_each;
  const T* const x = args.x;
  // Offsets in x fit into 32 bits, and need half the instructions of pointers to rows.
  const auto width = static_cast<uint32_t>(columns.in);
  const uint32_t first = plane * static_cast<uint32_t>(rows.in) * width;
  T* const to = static_cast<T*>(args.y) +
                static_cast<size_t>(plane) * static_cast<size_t>(rows.out) * static_cast<size_t>(columns.out);
  Neighbours c[kColumns];
  UNROLL for (int k = 0; k < kColumns; ++k) {
    c[k] = sources_of(columns, min_int(first_column + k, columns.out - 1), args.mode);
  }
  // The rows of X in `top` and `bottom`; upsampling reuses most of them.
  int top_row = -1, bottom_row = -1;
  float top[kColumns] = {}, bottom[kColumns] = {};
  const auto interpolate_columns = [&](int row, float (&out)[kColumns]) {
    const uint32_t line = first + static_cast<uint32_t>(row) * width;
    UNROLL for (int k = 0; k < kColumns; ++k) {
      const float left = to_float(x[line + static_cast<uint32_t>(c[k].low)]),
                  right = to_float(x[line + static_cast<uint32_t>(c[k].high)]);
      out[k] = left * (1 - c[k].weight) + right * c[k].weight;
    }
  };
  const int end = min_int(first_row + args.rows_each, rows.out);
  NO_UNROLL for (int row = first_row; row < end; ++row) {
    const Neighbours r = sources_of(rows, row, args.mode);
    Pack<T> out;
    if (args.mode == Interpolation::kLinear) {
      if (r.low != top_row) {
        if (r.low == bottom_row) {
          UNROLL for (int k = 0; k < kColumns; ++k) top[k] = bottom[k];
        } else {
          interpolate_columns(r.low, top);
        }
        top_row = r.low;
      }
      if (r.high != bottom_row) {
        interpolate_columns(r.high, bottom);
        bottom_row = r.high;
      }
      UNROLL for (int k = 0; k < kColumns; ++k) {
        out.v[k] = from_float<T>(top[k] * (1 - r.weight) + bottom[k] * r.weight);
      }
    } else {
      const uint32_t line = first + static_cast<uint32_t>(r.low) * width;
      UNROLL for (int k = 0; k < kColumns; ++k) out.v[k] = x[line + static_cast<uint32_t>(c[k].low)];
    }
    T* const y = to + static_cast<ptrdiff_t>(row) * columns.out + first_column;
    if (args.uses_packs != 0) {
      store_pack(y, out);
    } else {
      UNROLL for (int k = 0; k < kColumns; ++k) {
        if (first_column + k < columns.out) y[k] = out.v[k];
      }
    }
  }
}

template <int kSize>
DEVICE void resize_channels_last(const ResizeChannelsLastArgs& args) {
  const SourceAxis &rows = args.rows, &columns = args.columns;
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
  const Neighbours r = sources_of(rows, static_cast<int>(row), args.mode),
                   c = sources_of(columns, static_cast<int>(column), args.mode);
  Values out = at(r.low, c.low);
  if (args.mode == Interpolation::kLinear) {
    const Values right = at(r.low, c.high), below = at(r.high, c.low), high = at(r.high, c.high);
    UNROLL for (int j = 0; j < kSize; ++j) {
      const float top = to_float(out.v[j]) * (1 - c.weight) + to_float(right.v[j]) * c.weight;
      const float bottom = to_float(below.v[j]) * (1 - c.weight) + to_float(high.v[j]) * c.weight;
      out.v[j] = from_float<half_t>(top * (1 - r.weight) + bottom * r.weight);
    }
  }
  store_channels(to, out);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(resize, resize<T>, kResizeThreads, ResizeArgs, x, y)
KERNEL_OF(resize_channels_last_8_f16, resize_channels_last<8>, kResizeThreads, ResizeChannelsLastArgs, x, y)
KERNEL_OF(resize_channels_last_1_f16, resize_channels_last<1>, kResizeThreads, ResizeChannelsLastArgs, x, y)
