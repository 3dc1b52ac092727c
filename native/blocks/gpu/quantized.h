// 8-bit numbers and the real ones that they stand for.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// To the nearest whole number, and to the even one of two; NaN becomes 0 as it is none.
DEVICE float nearest_whole(float x) {
  const float magnitude = x < 0 ? -x : x;
  if (!(magnitude < 8388608.0f)) return x != x ? 0.0f : x;
  const float whole = (magnitude + 8388608.0f) - 8388608.0f;
  return x < 0 ? -whole : whole;
}

// A byte as a number.
DEVICE int32_t byte_number(uint8_t x, bool is_signed) { return is_signed ? static_cast<int8_t>(x) : x; }

// A whole number as a byte, what is beyond cut off.
DEVICE uint8_t saturated_byte(float x, bool is_signed) {
  const float low = is_signed ? -128.0f : 0.0f, high = low + 255.0f;
  return static_cast<uint8_t>(static_cast<int32_t>(x < low ? low : x > high ? high : x));
}

}  // namespace graphopt::hip
