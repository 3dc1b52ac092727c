// Conversions between float and elements of at most 8 bits.
#pragma once

#include "blocks/gpu/bytes.h"
#include "device/platform.h"

namespace graphopt::hip {

// Ties go to even integers. NaN becomes 0, because it has no integer value.
DEVICE float round_to_even(float x) {
  const float magnitude = x < 0 ? -x : x;
  if (!(magnitude < 8388608.0f)) return x != x ? 0.0f : x;
  const float whole = (magnitude + 8388608.0f) - 8388608.0f;
  return x < 0 ? -whole : whole;
}

// Adding this to a float below 2^22 in magnitude rounds it to an integer, ties to even. The low bits of the sum are the
// low bits of the integer. On NVIDIA, this addition has four times the rate of a conversion to an integer.
constexpr float kToInteger = 12582912.0f;  // 3 * 2^22

DEVICE float min_float(float a, float b) { return -max_float(-a, -b); }

// Returns the low bytes of four integers. x: the integers as floats, plus kToInteger.
DEVICE uint32_t low_bytes(const float* x) {
  const auto pair = [x](int i) {
    return select_bytes<0, 4, 0, 4>(bit_cast<uint32_t>(x[i]), bit_cast<uint32_t>(x[i + 1]));
  };
  return select_bytes<0, 1, 4, 5>(pair(0), pair(2));
}

// Returns x - subtracted as unsigned bytes, with saturation. The differences are integers.
DEVICE uint32_t saturate_to_bytes(const float (&x)[4], float subtracted) {
#if defined(__CUDACC__)
  // The bits of 2^-149 n, for 0 <= n < 2^24, are n (denormal below 2^23). Those of a larger number are a larger
  // integer, and those of a negative number are a negative one. This needs no conversion and no comparison.
  constexpr float kLeast = 1.401298464324817e-45f;  // 2^-149
  uint32_t bits[4], high, bytes;
  UNROLL for (int i = 0; i < 4; ++i) {
    bits[i] = bit_cast<uint32_t>(fused_multiply_add(x[i], kLeast, -subtracted * kLeast));
  }
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(bits[3]), "r"(bits[2]));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(bits[1]), "r"(bits[0]), "r"(high));
  return bytes;
#else
  float rounded[4];
  UNROLL for (int i = 0; i < 4; ++i) {
    rounded[i] = min_float(max_float(x[i] - subtracted, 0.0f), 255.0f) + kToInteger;
  }
  return low_bytes(rounded);
#endif
}

// Adds the four bytes of a and b in pairs, modulo 256.
DEVICE uint32_t add_bytes(uint32_t a, uint32_t b) {
  constexpr uint32_t kSigns = 0x80808080;
  return ((a & ~kSigns) + (b & ~kSigns)) ^ ((a ^ b) & kSigns);
}

// Returns byte kByte as a float, without a conversion: 2^23 + x has the bits of x in its low bits.
template <int kByte>
DEVICE float byte_to_float(uint32_t bytes, bool is_signed) {
  const uint32_t x = bytes ^ (is_signed ? 0x80808080u : 0u);
  return bit_cast<float>(select_bytes<kByte, 4, 4, 7>(x, 0x4b000000)) -
         (is_signed ? 8388608.0f + 128 : 8388608.0f);
}
DEVICE void bytes_to_floats(uint32_t bytes, bool is_signed, float* to) {
  to[0] = byte_to_float<0>(bytes, is_signed);
  to[1] = byte_to_float<1>(bytes, is_signed);
  to[2] = byte_to_float<2>(bytes, is_signed);
  to[3] = byte_to_float<3>(bytes, is_signed);
}

DEVICE int32_t byte_value(uint8_t x, bool is_signed) { return is_signed ? static_cast<int8_t>(x) : x; }

// Converts an integer-valued float to kBits bits, with saturation. Returns them in the low bits.
template <int kBits>
DEVICE uint32_t saturate(float x, bool is_signed) {
  const float low = is_signed ? -static_cast<float>(1 << (kBits - 1)) : 0.0f;
  const float high = low + static_cast<float>((1 << kBits) - 1);
  const auto whole = static_cast<int32_t>(x < low ? low : x > high ? high : x);
  return static_cast<uint32_t>(whole) & ((1u << kBits) - 1);
}
DEVICE uint8_t saturate_to_byte(float x, bool is_signed) {
  return static_cast<uint8_t>(saturate<8>(x, is_signed));
}

// int8, for kernels that also support Float8.
struct Int8 {
  int8_t bits;

  // Rounds with saturation.
  DEVICE static Int8 of(float x) { return {static_cast<int8_t>(saturate_to_byte(round_to_even(x), true))}; }
};
DEVICE float to_float(Int8 x) { return static_cast<float>(x.bits); }

// float8e4m3fn of ONNX: a sign, 4 bits of exponent with a bias of 7, 3 bits of mantissa, no infinities.
struct Float8 {
  static constexpr uint32_t kNan = 0x7f, kMaxFinite = 0x7e, kSign = 0x80;
  static constexpr int kShift = 20;                  // number of mantissa bits: a float's minus a Float8's
  static constexpr uint32_t kBias = (127 - 7) << 3;  // exponent bias: a float's minus a Float8's
  uint8_t bits;

  // Rounds to the nearest value, ties to even. Magnitudes above 448 become 448, NaN remains NaN.
  DEVICE static Float8 of(float x) {
    constexpr float kMinNormal = 0.015625f;
    const float magnitude = x < 0 ? -x : x;
    uint32_t code = kNan;
    if (magnitude >= 448.0f) {
      code = kMaxFinite;
    } else if (magnitude < kMinNormal) {
      code = static_cast<uint32_t>(round_to_even(magnitude * 512.0f));
    } else if (x == x) {
      const uint32_t float_bits = bit_cast<uint32_t>(magnitude);
      const uint32_t half = (1u << (kShift - 1)) - 1 + (float_bits >> kShift & 1);
      code = ((float_bits + half) >> kShift) - kBias;
    }
    return {static_cast<uint8_t>(code | (x < 0 ? kSign : 0u))};
  }
};
DEVICE float to_float(Float8 x) {
  const uint32_t code = x.bits & ~Float8::kSign;
  const float magnitude = code == Float8::kNan ? bit_cast<float>(uint32_t{0x7fc00000})
                          : code < 8           ? static_cast<float>(code) * 0.001953125f
                                               : bit_cast<float>((code + Float8::kBias) << Float8::kShift);
  return (x.bits & Float8::kSign) != 0 ? -magnitude : magnitude;
}

}  // namespace graphopt::hip
