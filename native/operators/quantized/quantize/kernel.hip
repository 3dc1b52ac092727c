// QuantizeLinear to 4, 8 and 16 bits and DequantizeLinear from 4, 8, 16 and 32 bits, computed in float32.
//
// Memory-bound: a work-item accesses 16 bytes of floats with one instruction, and their quantized values with another.
#include "blocks/gpu/quantized.h"
#include "device/platform.h"
#include "operators/quantized/quantize/args.h"

namespace graphopt::hip {

// Returns the index of the scale of element i.
DEVICE uint32_t scale_of(const QuantizeArgs& args, uint32_t i) {
  if (args.scales == Scales::kOne) return 0;
  const uint32_t line = divide(i, args.inner), outer = divide(line, args.size);
  const uint32_t along = line - outer * args.size.d;
  if (args.scales == Scales::kAxis) return along;
  return (outer * args.blocks + divide(along, args.block)) * args.inner.d + (i - line * args.inner.d);
}

template <class X, int kCount>
struct alignas(kCount * sizeof(X)) Elements {
  X v[kCount];
};

// Signed or unsigned integers of kBits bits in memory: an X holds one integer, or two of 4 bits, the first one in the
// low bits.
template <class X, int kBits_>
struct Stored {
  static constexpr int kBits = kBits_;
  static constexpr int kInOne = 8 * static_cast<int>(sizeof(X)) / kBits;

  static DEVICE int32_t number(X x, uint32_t i, bool is_signed) {
    constexpr int kFree = 32 - kBits;
    const uint32_t part = kInOne == 1 ? 0 : i % kInOne * kBits;
    const uint32_t bits = static_cast<uint32_t>(x) >> part << kFree;
    return is_signed ? static_cast<int32_t>(bits) >> kFree : static_cast<int32_t>(bits >> kFree);
  }
  static DEVICE int32_t at(const X* x, uint32_t i, bool is_signed) {
    return number(x[i / kInOne], i, is_signed);
  }
};

template <>
struct Stored<int32_t, 32> {
  static constexpr int kInOne = 1;
  static DEVICE int32_t number(int32_t x, uint32_t, bool) { return x; }
  static DEVICE int32_t at(const int32_t* x, uint32_t i, bool) { return x[i]; }
};

template <class In, class X>
DEVICE int32_t zero_of(const QuantizeArgs& args, uint32_t at) {
  const X* zero = args.zero;
  return zero == nullptr ? 0 : In::at(zero, at, args.is_signed != 0);
}

template <class To, class X, class T>
DEVICE uint32_t quantized(const QuantizeArgs& args, uint32_t i, T x) {
  const T* scale = args.scale;
  const uint32_t at = scale_of(args, i);
  const float y = to_float(x) / to_float(scale[at]), zero = static_cast<float>(zero_of<To, X>(args, at));
  return saturate<To::kBits>(args.zero_first != 0 ? round_to_even(y + zero) : round_to_even(y) + zero,
                             args.is_signed != 0);
}

template <class From, class X, class T>
DEVICE T dequantized(const QuantizeArgs& args, uint32_t i, int32_t x) {
  const T* scale = args.scale;
  const uint32_t at = scale_of(args, i);
  const int64_t number = int64_t{x} - zero_of<From, X>(args, at);
  return from_float<T>(static_cast<float>(number) * to_float(scale[at]));
}

DEVICE uint32_t first_element(int pack) { return work_item(kQuantizeThreads) * static_cast<uint32_t>(pack); }

template <class X, int kBits, class T>
DEVICE void quantize(const QuantizeArgs& args) {
  using To = Stored<X, kBits>;
  const T* x = args.x;
  X* y = args.y;
  constexpr int kSize = Pack<T>::kSize, kOut = kSize / To::kInOne;
  const uint32_t first = first_element(kSize);
  // Returns the X that holds the quantized elements from i on. Elements beyond `total` are 0.
  const auto packed = [&](uint32_t i, const auto& value) {
    uint32_t bits = 0;
    UNROLL for (uint32_t part = 0; part < To::kInOne; ++part) {
      if (i + part < args.total) bits |= quantized<To, X>(args, i + part, value(part)) << part * kBits;
    }
    return static_cast<X>(bits);
  };
  if (args.vectors != 0 && first + kSize <= args.total) {
    const Pack<T> in = load_pack(x + first);
    Elements<X, kOut> out;
    UNROLL for (int j = 0; j < kOut; ++j) {
      const int k = j * To::kInOne;
      out.v[j] = packed(first + static_cast<uint32_t>(k),
                        [&](uint32_t part) { return in.v[k + static_cast<int>(part)]; });
    }
    *reinterpret_cast<Elements<X, kOut>*>(y + first / To::kInOne) = out;
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < first + kSize && i < args.total; i += To::kInOne) {
    y[i / To::kInOne] = packed(i, [&](uint32_t part) { return x[i + part]; });
  }
}

template <class X, int kBits, class T>
DEVICE void dequantize(const QuantizeArgs& args) {
  using From = Stored<X, kBits>;
  const X* x = args.x;
  T* y = args.y;
  const bool is_signed = args.is_signed != 0;
  constexpr int kSize = Pack<T>::kSize, kIn = kSize / From::kInOne;
  const uint32_t first = first_element(kSize);
  if (args.vectors != 0 && first + kSize <= args.total) {
    const auto in = *reinterpret_cast<const Elements<X, kIn>*>(x + first / From::kInOne);
    Pack<T> out;
    UNROLL for (int j = 0; j < kSize; ++j) {
      const uint32_t i = first + static_cast<uint32_t>(j);
      out.v[j] = dequantized<From, X, T>(args, i, From::number(in.v[j / From::kInOne], i, is_signed));
    }
    store_pack(y + first, out);
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < first + kSize && i < args.total; ++i) {
    y[i] = dequantized<From, X, T>(args, i, From::at(x, i, is_signed));
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(quantize_b4, (quantize<uint8_t, 4, T>), kQuantizeThreads, QuantizeArgs, x, scale, zero, y)
FLOAT_KERNELS(dequantize_b4, (dequantize<uint8_t, 4, T>), kQuantizeThreads, QuantizeArgs, x, scale, zero, y)
FLOAT_KERNELS(quantize_b8, (quantize<uint8_t, 8, T>), kQuantizeThreads, QuantizeArgs, x, scale, zero, y)
FLOAT_KERNELS(dequantize_b8, (dequantize<uint8_t, 8, T>), kQuantizeThreads, QuantizeArgs, x, scale, zero, y)
FLOAT_KERNELS(quantize_b16, (quantize<uint16_t, 16, T>), kQuantizeThreads, QuantizeArgs, x, scale, zero, y)
FLOAT_KERNELS(dequantize_b16, (dequantize<uint16_t, 16, T>), kQuantizeThreads, QuantizeArgs, x, scale, zero,
              y)
FLOAT_KERNELS(dequantize_i32, (dequantize<int32_t, 32, T>), kQuantizeThreads, QuantizeArgs, x, scale, zero, y)

// The range is extended to include 0: one of the 256 values then represents 0 exactly.
KERNEL(dynamic_scale, kDynamicThreads, DynamicScaleArgs, least, most, scale, zero) {
  const float *least = args.least, *most = args.most;
  float* scale = args.scale;
  uint8_t* zero = args.zero;
  if (thread_x() != 0) return;
  const float low = least[0] < 0.0f ? least[0] : 0.0f, high = most[0] > 0.0f ? most[0] : 0.0f;
  const float step = low == high ? 1.0f : (high - low) / 255.0f;
  scale[0] = step;
  zero[0] = saturate_to_byte(round_to_even(0.0f - low / step), false);
}
