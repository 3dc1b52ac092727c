// Conversions between float and integers of at most 8 bits.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// Rounds to the nearest integer, ties to even. NaN becomes 0 because it has no integer value.
DEVICE float round_to_even(float x) {
  const float magnitude = x < 0 ? -x : x;
  if (!(magnitude < 8388608.0f)) return x != x ? 0.0f : x;
  const float whole = (magnitude + 8388608.0f) - 8388608.0f;
  return x < 0 ? -whole : whole;
}

// Returns the value of a signed or unsigned byte.
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

}  // namespace graphopt::hip
