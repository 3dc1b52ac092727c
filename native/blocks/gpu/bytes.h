// Bytes in 32-bit words.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// Returns four bytes of a (bytes 0 to 3) and b (bytes 4 to 7), the first one in the low bits. clang compiles the
// expression to AMD's v_perm_b32.
template <int kFirst, int kSecond, int kThird, int kFourth>
DEVICE uint32_t select_bytes(uint32_t a, uint32_t b) {
#if defined(__CUDACC__)
  return __byte_perm(a, b, kFirst | kSecond << 4 | kThird << 8 | kFourth << 12);
#else
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  const auto byte = [both](int i) { return static_cast<uint32_t>(both >> 8 * i) & 0xff; };
  return byte(kFirst) | byte(kSecond) << 8 | byte(kThird) << 16 | byte(kFourth) << 24;
#endif
}

// Transposes 4 x 4 bytes: byte i of y[j] is byte j of x[i].
DEVICE void transpose_bytes(const uint32_t (&x)[4], uint32_t (&y)[4]) {
  const uint32_t low[2] = {select_bytes<0, 4, 1, 5>(x[0], x[1]), select_bytes<0, 4, 1, 5>(x[2], x[3])};
  const uint32_t high[2] = {select_bytes<2, 6, 3, 7>(x[0], x[1]), select_bytes<2, 6, 3, 7>(x[2], x[3])};
  y[0] = select_bytes<0, 1, 4, 5>(low[0], low[1]);
  y[1] = select_bytes<2, 3, 6, 7>(low[0], low[1]);
  y[2] = select_bytes<0, 1, 4, 5>(high[0], high[1]);
  y[3] = select_bytes<2, 3, 6, 7>(high[0], high[1]);
}

// Returns the larger one of each of four unsigned bytes.
DEVICE uint32_t max_of_bytes(uint32_t a, uint32_t b) {
#if defined(__CUDACC__)
  return __vmaxu4(a, b);
#else
  uint32_t most = 0;
  UNROLL for (int i = 0; i < 4; ++i) {
    const uint32_t x = a & 0xffu << 8 * i, y = b & 0xffu << 8 * i;
    most |= x > y ? x : y;
  }
  return most;
#endif
}

// Returns sum plus the products of four signed bytes. clang compiles the expression to AMD's dot product instruction.
DEVICE int32_t add_products(uint32_t a, uint32_t b, int32_t sum) {
#if defined(__CUDACC__)
  return __dp4a(static_cast<int32_t>(a), static_cast<int32_t>(b), sum);
#else
  UNROLL for (int i = 0; i < 4; ++i) {
    sum += static_cast<int32_t>(static_cast<int8_t>(a >> 8 * i)) * static_cast<int8_t>(b >> 8 * i);
  }
  return sum;
#endif
}

}  // namespace graphopt::hip
