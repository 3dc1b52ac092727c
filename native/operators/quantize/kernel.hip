// QuantizeLinear to 8 bits and DequantizeLinear from 8 and 32, in float32.
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

DEVICE float zero_of(const QuantizeArgs& args, uint32_t at, uint8_t) {
  const uint8_t* zero = args.zero;
  if (zero == nullptr) return 0.0f;
  return static_cast<float>(byte_number(zero[at], args.is_signed != 0));
}

template <class T>
DEVICE uint8_t quantized(const QuantizeArgs& args, uint32_t i, T x) {
  const T* scale = args.scale;
  const uint32_t at = scale_of(args, i);
  const float y = nearest_whole(to_float(x) / to_float(scale[at])) + zero_of(args, at, uint8_t());
  return saturated_byte(y, args.is_signed != 0);
}

template <class T>
DEVICE T dequantized(const QuantizeArgs& args, uint32_t i, uint8_t x) {
  const T* scale = args.scale;
  const uint32_t at = scale_of(args, i);
  const auto number = static_cast<float>(byte_number(x, args.is_signed != 0));
  return from_float<T>((number - zero_of(args, at, x)) * to_float(scale[at]));
}

template <class T>
DEVICE T dequantized(const QuantizeArgs& args, uint32_t i, int32_t x) {
  const T* scale = args.scale;
  const int32_t* zero = args.zero;
  const uint32_t at = scale_of(args, i);
  const int64_t number = zero != nullptr ? int64_t{x} - zero[at] : x;
  return from_float<T>(static_cast<float>(number) * to_float(scale[at]));
}

template <class X, int kCount>
struct alignas(kCount * sizeof(X)) Numbers {
  X v[kCount];
};

DEVICE uint32_t first_element(int pack) { return work_item(kQuantizeThreads) * static_cast<uint32_t>(pack); }

template <class T>
DEVICE void quantize(const QuantizeArgs& args) {
  const T* x = args.x;
  uint8_t* y = args.y;
  constexpr int kSize = Pack<T>::kSize;
  const uint32_t first = first_element(kSize);
  if (args.vectors != 0 && first + kSize <= args.total) {
    const Pack<T> in = load_pack(x + first);
    Numbers<uint8_t, kSize> out;
    UNROLL for (int j = 0; j < kSize; ++j) {
      out.v[j] = quantized(args, first + static_cast<uint32_t>(j), in.v[j]);
    }
    *reinterpret_cast<Numbers<uint8_t, kSize>*>(y + first) = out;
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < first + kSize && i < args.total; ++i) y[i] =
      quantized(args, i, x[i]);
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
      out.v[j] = dequantized<T>(args, first + static_cast<uint32_t>(j), in.v[j]);
    }
    store_pack(y + first, out);
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < first + kSize && i < args.total; ++i) {
    y[i] = dequantized<T>(args, i, x[i]);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define QUANTIZE_KERNELS(T, suffix)                                                                   \
  KERNEL(quantize_##suffix, kQuantizeThreads, QuantizeArgs, x, scale, zero, y) { quantize<T>(args); } \
  KERNEL(dequantize_b8_##suffix, kQuantizeThreads, QuantizeArgs, x, scale, zero, y) {                 \
    dequantize<uint8_t, T>(args);                                                                     \
  }                                                                                                   \
  KERNEL(dequantize_i32_##suffix, kQuantizeThreads, QuantizeArgs, x, scale, zero, y) {                \
    dequantize<int32_t, T>(args);                                                                     \
  }

QUANTIZE_KERNELS(float, f32)
QUANTIZE_KERNELS(half_t, f16)

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
