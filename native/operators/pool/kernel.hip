// MaxPool and AveragePool over up to three spatial axes of x [planes, ..], and LRN, whose window lies over
// channels: a work-item for each output.
//
// Bound by memory: X is read once, where windows overlap again from the cache, and Y written once, for a FLOP
// a tap. scripts/gpu_bench.py sets it beside a copy.
#include "blocks/gpu/channels_last.h"
#include "blocks/gpu/quantized.h"
#include "device/platform.h"
#include "operators/pool/args.h"

namespace graphopt::hip {

// Every whole number of 8 bits is a float.
DEVICE float number_of(float x) { return x; }
DEVICE float number_of(half_t x) { return to_float(x); }
DEVICE float number_of(uint8_t x) { return static_cast<float>(x); }
DEVICE float number_of(int8_t x) { return static_cast<float>(x); }

template <class T>
DEVICE T pooled(float most) {
  return from_float<T>(most);
}
// Of a window that lies in the padding: the least number.
template <>
DEVICE uint8_t pooled(float most) {
  return saturated_byte(most, false);
}
template <>
DEVICE int8_t pooled(float most) {
  return static_cast<int8_t>(saturated_byte(most, true));
}

template <class T>
DEVICE void pool(const PoolArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const Divisor &per_plane = args.per_plane, &per_slice = args.per_slice, &across = args.across;
  const PoolAxis &a = args.axes[0], &b = args.axes[1], &c = args.axes[2];
  const uint32_t i = work_item(kPoolThreads);
  if (i >= args.total) return;
  const uint32_t number = divide(i, per_plane), in_plane = i - number * per_plane.d;
  const uint32_t slice = divide(in_plane, per_slice), in_slice = in_plane - slice * per_slice.d;
  const uint32_t row = divide(in_slice, across), column = in_slice - row * across.d;
  const T* from = x + static_cast<size_t>(number) * args.plane;
  const auto inside = [](int at, const PoolAxis& axis) { return at >= 0 && at < axis.in; };
  float most = -bit_cast<float>(0x7f800000u), sum = 0;
  int count = 0;
  for (int r = 0; r < a.kernel; ++r) {
    const int p = static_cast<int>(slice) * a.stride + a.first + r * a.dilation;
    if (p >= a.last) break;
    for (int s = 0; s < b.kernel; ++s) {
      const int q = static_cast<int>(row) * b.stride + b.first + s * b.dilation;
      if (q >= b.last) break;
      for (int t = 0; t < c.kernel; ++t) {
        const int k = static_cast<int>(column) * c.stride + c.first + t * c.dilation;
        if (k >= c.last) break;
        if (!inside(p, a) || !inside(q, b) || !inside(k, c)) {
          count += args.mode == PoolMode::kAverageWithPadding ? 1 : 0;
          continue;
        }
        const float v = number_of(from[(p * b.in + q) * c.in + k]);
        most = v > most || v != v ? v : most;
        sum += v;
        ++count;
      }
    }
  }
  y[i] = pooled<T>(args.mode == PoolMode::kMax ? most : sum / static_cast<float>(count));
}

template <int kSize>
DEVICE void pool_channels_last(const PoolChannelsLastArgs& args) {
  const half_t* x = args.x;
  half_t* y = args.y;
  const PoolAxis &b = args.axes[0], &c = args.axes[1];
  const uint32_t i = work_item(kPoolThreads);
  if (i >= args.total) return;
  const uint32_t pixel = divide(i, args.packs), channel = (i - pixel * args.packs.d) * kSize;
  const uint32_t image = divide(pixel, args.per_image), in_image = pixel - image * args.per_image.d;
  const uint32_t row = divide(in_image, args.across), column = in_image - row * args.across.d;
  const half_t* const from =
      x + static_cast<size_t>(image) * static_cast<size_t>(b.in) * static_cast<size_t>(c.in) * args.channels +
      channel;
  float most[kSize], sum[kSize];
  UNROLL for (int j = 0; j < kSize; ++j) {
    most[j] = -bit_cast<float>(0x7f800000u);
    sum[j] = 0;
  }
  int count = 0;
  for (int s = 0; s < b.kernel; ++s) {
    const int q = static_cast<int>(row) * b.stride + b.first + s * b.dilation;
    if (q >= b.last) break;
    for (int t = 0; t < c.kernel; ++t) {
      const int k = static_cast<int>(column) * c.stride + c.first + t * c.dilation;
      if (k >= c.last) break;
      if (q < 0 || q >= b.in || k < 0 || k >= c.in) {
        count += args.mode == PoolMode::kAverageWithPadding ? 1 : 0;
        continue;
      }
      const auto values = load_channels<kSize>(from + static_cast<size_t>(q * c.in + k) * args.channels);
      UNROLL for (int j = 0; j < kSize; ++j) {
        const float v = to_float(values.v[j]);
        most[j] = v > most[j] || v != v ? v : most[j];
        sum[j] += v;
      }
      ++count;
    }
  }
  Channels<kSize> out;
  UNROLL for (int j = 0; j < kSize; ++j) {
    out.v[j] = from_float<half_t>(args.mode == PoolMode::kMax ? most[j] : sum[j] / static_cast<float>(count));
  }
  store_channels(y + static_cast<size_t>(pixel) * args.channels + channel, out);
}

template <class T>
DEVICE void lrn(const LrnArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const uint32_t i = work_item(kPoolThreads);
  if (i >= args.total) return;
  const uint32_t plane = divide(i, args.inner), size = args.inner.d;
  const auto channel = static_cast<int>(plane - divide(plane, args.channels) * args.channels.d);
  const int first = -min_int(channel, args.before),
            last = min_int(static_cast<int>(args.channels.d) - 1 - channel, args.after);
  float sum = 0;
  for (int c = first; c <= last; ++c) {
    const float v = to_float(x[i + static_cast<uint32_t>(c) * size]);
    sum += v * v;
  }
  const float power = exp2_fast(-args.beta * log2_fast(args.bias + args.scale * sum));
  y[i] = from_float<T>(to_float(x[i]) * power);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define POOL_KERNEL(T, suffix) \
  KERNEL(pool_##suffix, kPoolThreads, PoolArgs, x, y) { pool<T>(args); }

#define LRN_KERNEL(T, suffix) \
  KERNEL(lrn_##suffix, kPoolThreads, LrnArgs, x, y) { lrn<T>(args); }

LRN_KERNEL(float, f32)
LRN_KERNEL(half_t, f16)

POOL_KERNEL(float, f32)
POOL_KERNEL(half_t, f16)
POOL_KERNEL(uint8_t, u8)
POOL_KERNEL(int8_t, i8)

#define POOL_CHANNELS_LAST_KERNEL(size)                                               \
  KERNEL(pool_channels_last_##size##_f16, kPoolThreads, PoolChannelsLastArgs, x, y) { \
    pool_channels_last<size>(args);                                                   \
  }

POOL_CHANNELS_LAST_KERNEL(8)
POOL_CHANNELS_LAST_KERNEL(1)
