// QuantizeLinear to 8 and 16 bits and DequantizeLinear from these and 32, in float32.
//
// Bound by memory: 16 bytes of floats a work-item, and the numbers beside them at once.
#include "blocks/gpu/quantized.h"
#include "device/platform.h"
#include "operators/quantize/args.h"

namespace graphopt::hip {

DEVICE uint32_t scale_of(const QuantizeArgs& args, uint32_t i) {
  if (args.scales == Scales::kOne) return 0;
  const uint32_t line = divide(i, args.inner), outer = divide(line, args.size);
  const uint32_t place = line - outer * args.size.d;
  if (args.scales == Scales::kAxis) return place;
  return (outer * args.blocks + divide(place, args.block)) * args.inner.d + (i - line * args.inner.d);
}

template <class X, int kCount>
struct alignas(kCount * sizeof(X)) Numbers {
  X v[kCount];
};

// Numbers of 8, 16 or 32 bits as they lie in memory; those of 8 and 16 may be signed or not, of 32 they are.
DEVICE int32_t whole_number(uint8_t x, bool is_signed) { return byte_number(x, is_signed); }
DEVICE int32_t whole_number(uint16_t x, bool is_signed) { return is_signed ? static_cast<int16_t>(x) : x; }
DEVICE int32_t whole_number(int32_t x, bool) { return x; }

template <class X>
DEVICE X saturated(float x, bool is_signed) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(X));
  const float low = is_signed ? -static_cast<float>(1 << (kBits - 1)) : 0.0f;
  const float high = low + static_cast<float>((1 << kBits) - 1);
  return static_cast<X>(static_cast<int32_t>(x < low ? low : x > high ? high : x));
}

template <class X>
DEVICE int32_t zero_of(const QuantizeArgs& args, uint32_t at) {
  const X* zero = args.zero;
  return zero == nullptr ? 0 : whole_number(zero[at], args.is_signed != 0);
}

template <class X, class T>
DEVICE X quantized(const QuantizeArgs& args, uint32_t i, T x) {
  const T* scale = args.scale;
  const uint32_t at = scale_of(args, i);
  const float y = to_float(x) / to_float(scale[at]), zero = static_cast<float>(zero_of<X>(args, at));
  return saturated<X>(args.zero_first != 0 ? nearest_whole(y + zero) : nearest_whole(y) + zero,
                      args.is_signed != 0);
}

template <class X, class T>
DEVICE T dequantized(const QuantizeArgs& args, uint32_t i, X x) {
  const T* scale = args.scale;
  const uint32_t at = scale_of(args, i);
  const int64_t number = int64_t{whole_number(x, args.is_signed != 0)} - zero_of<X>(args, at);
  return from_float<T>(static_cast<float>(number) * to_float(scale[at]));
}

DEVICE uint32_t first_element(int pack) { return work_item(kQuantizeThreads) * static_cast<uint32_t>(pack); }

template <class X, class T>
DEVICE void quantize(const QuantizeArgs& args) {
  const T* x = args.x;
  X* y = args.y;
  constexpr int kSize = Pack<T>::kSize;
  const uint32_t first = first_element(kSize);
  if (args.vectors != 0 && first + kSize <= args.total) {
    const Pack<T> in = load_pack(x + first);
    Numbers<X, kSize> out;
    UNROLL for (int j = 0; j < kSize; ++j) {
      out.v[j] = quantized<X>(args, first + static_cast<uint32_t>(j), in.v[j]);
    }
    *reinterpret_cast<Numbers<X, kSize>*>(y + first) = out;
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < first + kSize && i < args.total; ++i) y[i] =
      quantized<X>(args, i, x[i]);
}

template <class X, class T>
DEVICE void dequantize(const QuantizeArgs& args) {
  const X* x = args.x;
  T* y = args.y;
  constexpr int kSize = Pack<T>::kSize;
  const uint32_t first = first_element(kSize);
  if (args.vectors != 0 && first + kSize <= args.total) {
    const auto in = *reinterpret_cast<const Numbers<X, kSize>*>(x + first);
    Pack<T> out;
    UNROLL for (int j = 0; j < kSize; ++j) {
      out.v[j] = dequantized<X, T>(args, first + static_cast<uint32_t>(j), in.v[j]);
    }
    store_pack(y + first, out);
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < first + kSize && i < args.total; ++i) {
    y[i] = dequantized<X, T>(args, i, x[i]);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define DEQUANTIZE_KERNEL(X, suffix, T, of)                                               \
  KERNEL(dequantize_##suffix##_##of, kQuantizeThreads, QuantizeArgs, x, scale, zero, y) { \
    dequantize<X, T>(args);                                                               \
  }
#define QUANTIZE_KERNELS(X, suffix, T, of)                                              \
  KERNEL(quantize_##suffix##_##of, kQuantizeThreads, QuantizeArgs, x, scale, zero, y) { \
    quantize<X, T>(args);                                                               \
  }                                                                                     \
  DEQUANTIZE_KERNEL(X, suffix, T, of)

QUANTIZE_KERNELS(uint8_t, b8, float, f32)
QUANTIZE_KERNELS(uint16_t, b16, float, f32)
DEQUANTIZE_KERNEL(int32_t, i32, float, f32)
QUANTIZE_KERNELS(uint8_t, b8, half_t, f16)
QUANTIZE_KERNELS(uint16_t, b16, half_t, f16)
DEQUANTIZE_KERNEL(int32_t, i32, half_t, f16)

// The range has 0 in it, which one of the 256 numbers stands for.
KERNEL(dynamic_scale, kDynamicThreads, DynamicScaleArgs, least, most, scale, zero) {
  const float *least = args.least, *most = args.most;
  float* scale = args.scale;
  uint8_t* zero = args.zero;
  if (thread_x() != 0) return;
  const float low = least[0] < 0.0f ? least[0] : 0.0f, high = most[0] > 0.0f ? most[0] : 0.0f;
  const float step = low == high ? 1.0f : (high - low) / 255.0f;
  scale[0] = step;
  zero[0] = saturated_byte(nearest_whole(0.0f - low / step), false);
}
