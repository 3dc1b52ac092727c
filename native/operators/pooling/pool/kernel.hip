// MaxPool and AveragePool over up to three spatial axes of x [planes, ..], and LRN, whose window is over channels. A
// work-item computes one output, or kPoolOutputsPerItem adjacent outputs with one computation of indices.
//
// Bound by memory: X is read once, overlaps of windows are read again from the cache, and Y is written once. Each tap
// takes one FLOP. scripts/gpu_bench.py compares the kernel with a copy.
#include "blocks/gpu/bytes.h"
#include "blocks/gpu/channels_last.h"
#include "blocks/gpu/quantized.h"
#include "blocks/gpu/vec.h"
#include "device/platform.h"
#include "operators/pooling/pool/args.h"

namespace graphopt::hip {

// 8-bit integers are exact in float.
DEVICE float value_of(float x) { return x; }
DEVICE float value_of(half_t x) { return to_float(x); }
DEVICE float value_of(uint8_t x) { return static_cast<float>(x); }
DEVICE float value_of(int8_t x) { return static_cast<float>(x); }

template <class T>
DEVICE T pooled(float maximum) {
  return from_float<T>(maximum);
}
// The maximum of a window that is entirely in the padding is -infinity, which becomes the lowest integer.
template <>
DEVICE uint8_t pooled(float maximum) {
  return saturate_to_byte(maximum, false);
}
template <>
DEVICE int8_t pooled(float maximum) {
  return static_cast<int8_t>(saturate_to_byte(maximum, true));
}

// Computes kWidth adjacent elements of a row of y.
template <class T, int kWidth>
DEVICE void pool(const PoolArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const Divisor &per_plane = args.per_plane, &per_slice = args.per_slice, &across = args.across;
  const PoolAxis &a = args.axes[0], &b = args.axes[1], &c = args.axes[2];
  const uint32_t i = work_item(kPoolThreads) * kWidth;
  if (i >= args.total) return;
  const uint32_t plane = divide(i, per_plane), in_plane = i - plane * per_plane.d;
  const uint32_t slice = divide(in_plane, per_slice), in_slice = in_plane - slice * per_slice.d;
  const uint32_t row = divide(in_slice, across), column = in_slice - row * across.d;
  const T* from = x + static_cast<size_t>(plane) * args.plane;
  const auto inside = [](int at, const PoolAxis& axis) { return at >= 0 && at < axis.in; };
  const bool counts_padding = args.mode == PoolMode::kAverageWithPadding;
  float maximum[kWidth], sum[kWidth];
  int count[kWidth];
  UNROLL for (int w = 0; w < kWidth; ++w) {
    maximum[w] = -bit_cast<float>(0x7f800000u);
    sum[w] = 0;
    count[w] = 0;
  }
  for (int r = 0; r < a.kernel; ++r) {
    const int p = static_cast<int>(slice) * a.stride + a.first + r * a.dilation;
    if (p >= a.last) break;
    for (int s = 0; s < b.kernel; ++s) {
      const int q = static_cast<int>(row) * b.stride + b.first + s * b.dilation;
      if (q >= b.last) break;
      const bool in_row = inside(p, a) && inside(q, b);
      const T* const line = from + (p * b.in + q) * c.in;
      for (int t = 0; t < c.kernel; ++t) {
        const int first = static_cast<int>(column) * c.stride + c.first + t * c.dilation;
        UNROLL for (int w = 0; w < kWidth; ++w) {
          const int k = first + w * c.stride;
          if (in_row && inside(k, c)) {
            const float v = value_of(line[k]);
            maximum[w] = v > maximum[w] || v != v ? v : maximum[w];
            sum[w] += v;
            ++count[w];
          } else if (k < c.last) {
            count[w] += counts_padding ? 1 : 0;
          }
        }
      }
    }
  }
  Vec<T, kWidth> out;
  UNROLL for (int w = 0; w < kWidth; ++w) {
    out.v[w] = pooled<T>(args.mode == PoolMode::kMax ? maximum[w] : sum[w] / static_cast<float>(count[w]));
  }
  store_vec(y + i, out);
}

// For each tap of the window of a pixel of y, calls inside(offset in x of the tap's first channel), or outside() if the
// tap is in the padding.
template <class Inside, class Outside>
DEVICE void for_each_tap(const PoolChannelsLastArgs& args, uint32_t pixel, const Inside& inside,
                         const Outside& outside) {
  const PoolAxis &b = args.axes[0], &c = args.axes[1];
  const uint32_t image = divide(pixel, args.per_image), in_image = pixel - image * args.per_image.d;
  const uint32_t row = divide(in_image, args.across), column = in_image - row * args.across.d;
  const size_t first =
      static_cast<size_t>(image) * static_cast<size_t>(b.in) * static_cast<size_t>(c.in) * args.channels;
  for (int s = 0; s < b.kernel; ++s) {
    const int q = static_cast<int>(row) * b.stride + b.first + s * b.dilation;
    if (q >= b.last) break;
    for (int t = 0; t < c.kernel; ++t) {
      const int k = static_cast<int>(column) * c.stride + c.first + t * c.dilation;
      if (k >= c.last) break;
      if (q < 0 || q >= b.in || k < 0 || k >= c.in) {
        outside();
      } else {
        inside(first + static_cast<size_t>(q * c.in + k) * args.channels);
      }
    }
  }
}

template <int kSize>
DEVICE void pool_channels_last(const PoolChannelsLastArgs& args) {
  const half_t* x = args.x;
  half_t* y = args.y;
  const uint32_t i = work_item(kPoolThreads);
  if (i >= args.total) return;
  const uint32_t pixel = divide(i, args.packs), channel = (i - pixel * args.packs.d) * kSize;
  float maximum[kSize], sum[kSize];
  UNROLL for (int j = 0; j < kSize; ++j) {
    maximum[j] = -bit_cast<float>(0x7f800000u);
    sum[j] = 0;
  }
  int count = 0;
  for_each_tap(
      args, pixel,
      [&](size_t offset) {
        const auto values = load_channels<kSize>(x + offset + channel);
        UNROLL for (int j = 0; j < kSize; ++j) {
          const float v = to_float(values.v[j]);
          maximum[j] = v > maximum[j] || v != v ? v : maximum[j];
          sum[j] += v;
        }
        ++count;
      },
      [&] { count += args.mode == PoolMode::kAverageWithPadding ? 1 : 0; });
  Channels<kSize> out;
  UNROLL for (int j = 0; j < kSize; ++j) {
    out.v[j] =
        from_float<half_t>(args.mode == PoolMode::kMax ? maximum[j] : sum[j] / static_cast<float>(count));
  }
  store_channels(y + static_cast<size_t>(pixel) * args.channels + channel, out);
}

// MaxPool of kPoolBytes channels of 8-bit elements. They are compared as unsigned bytes: for signed elements,
// kInvertedBits inverts the sign bits.
template <uint32_t kInvertedBits>
DEVICE void max_pool_bytes(const PoolChannelsLastArgs& args) {
  const uint8_t* x = args.x;
  uint8_t* y = args.y;
  const uint32_t i = work_item(kPoolThreads);
  if (i >= args.total) return;
  const uint32_t pixel = divide(i, args.packs), channel = (i - pixel * args.packs.d) * kPoolBytes;
  Pack<uint32_t> maximum = {};
  for_each_tap(
      args, pixel,
      [&](size_t offset) {
        const auto bytes = load_pack(reinterpret_cast<const uint32_t*>(x + offset + channel));
        UNROLL for (int j = 0; j < kPoolBytes / 4; ++j) {
          maximum.v[j] = max_of_bytes(maximum.v[j], bytes.v[j] ^ kInvertedBits);
        }
      },
      [] {});
  UNROLL for (uint32_t& word : maximum.v) word ^= kInvertedBits;
  store_pack(reinterpret_cast<uint32_t*>(y + static_cast<size_t>(pixel) * args.channels + channel), maximum);
}

template <class T, int kWidth>
DEVICE void lrn(const LrnArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const uint32_t i = work_item(kPoolThreads) * kWidth;
  if (i >= args.total) return;
  const uint32_t plane = divide(i, args.inner), size = args.inner.d;
  const auto channel = static_cast<int>(plane - divide(plane, args.channels) * args.channels.d);
  const int first = -min_int(channel, args.before),
            last = min_int(static_cast<int>(args.channels.d) - 1 - channel, args.after);
  float sum[kWidth] = {};
  for (int c = first; c <= last; ++c) {
    const auto elements = load_vec<kWidth>(x + (i + static_cast<uint32_t>(c) * size));
    UNROLL for (int w = 0; w < kWidth; ++w) {
      const float v = to_float(elements.v[w]);
      sum[w] += v * v;
    }
  }
  auto values = load_vec<kWidth>(x + i);
  UNROLL for (int w = 0; w < kWidth; ++w) {
    const float power = exp2_fast(-args.beta * log2_fast(args.bias + args.scale * sum[w]));
    values.v[w] = from_float<T>(to_float(values.v[w]) * power);
  }
  store_vec(y + i, values);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(lrn, (lrn<T, 1>), kPoolThreads, LrnArgs, x, y)
FLOAT_KERNELS(lrn_together, (lrn<T, kPoolOutputsPerItem>), kPoolThreads, LrnArgs, x, y)

FLOAT_KERNELS(pool, (pool<T, 1>), kPoolThreads, PoolArgs, x, y)
FLOAT_KERNELS(pool_together, (pool<T, kPoolOutputsPerItem>), kPoolThreads, PoolArgs, x, y)
KERNEL_OF(pool_u8, (pool<uint8_t, 1>), kPoolThreads, PoolArgs, x, y)
KERNEL_OF(pool_together_u8, (pool<uint8_t, kPoolOutputsPerItem>), kPoolThreads, PoolArgs, x, y)
KERNEL_OF(pool_i8, (pool<int8_t, 1>), kPoolThreads, PoolArgs, x, y)
KERNEL_OF(pool_together_i8, (pool<int8_t, kPoolOutputsPerItem>), kPoolThreads, PoolArgs, x, y)

KERNEL_OF(pool_channels_last_8_f16, pool_channels_last<8>, kPoolThreads, PoolChannelsLastArgs, x, y)
KERNEL_OF(pool_channels_last_1_f16, pool_channels_last<1>, kPoolThreads, PoolChannelsLastArgs, x, y)
KERNEL_OF(max_pool_channels_last_u8, max_pool_bytes<0>, kPoolThreads, PoolChannelsLastArgs, x, y)
KERNEL_OF(max_pool_channels_last_i8, max_pool_bytes<0x80808080u>, kPoolThreads, PoolChannelsLastArgs, x, y)
