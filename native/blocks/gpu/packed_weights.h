// Converts weights of 2, 4 or 8 bits, packed with the low bits first, to float16.
//
// A weight q that is o bits above the lowest bit of its byte becomes the float16 value 1024 + 2^o q: the low bits of a
// float16 with the exponent of 1024 are an integer. A mask selects two weights of a 32-bit word, one in each half. Two
// fused multiply-adds dequantize both: d = q - z, which is exact, and d * scale + shift. z is the zero point, rounded
// to an integer, and `shift` corrects the rounding (Y. J. Kim et al., "Who Says Elephants Can't Run: Bringing Large
// Scale MoE Models into Cloud Scale Production", 2022).
#pragma once

#include "device/platform.h"
#include "gemm/loaders/packed_args.h"

namespace graphopt::hip {

#if defined(__CUDACC__)
typedef __half2 HalfPair;
#elif defined(__AMDGCN__)
typedef half_t HalfPair __attribute__((ext_vector_type(2)));
#else
struct HalfPair {
  half_t v[2];
};
#endif

DEVICE HalfPair multiply_add(const HalfPair& a, const HalfPair& b, const HalfPair& c) {
#if defined(__CUDACC__)
  return __hfma2(a, b, c);
#elif defined(__AMDGCN__)
  return a * b + c;
#else
  HalfPair y;
  for (int i = 0; i < 2; ++i) {
    y.v[i] = from_float<half_t>(fused_multiply_add(to_float(a.v[i]), to_float(b.v[i]), to_float(c.v[i])));
  }
  return y;
#endif
}
DEVICE HalfPair pair_of(half_t first, half_t second) {
#if defined(__CUDACC__)
  return __halves2half2(first, second);
#else
  return {first, second};
#endif
}

DEVICE uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t bits) {
#if defined(__CUDACC__)
  uint32_t y;  // nvcc does not combine two operations with constants
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(word), "r"(mask), "r"(bits));
  return y;
#else
  return (word & mask) | bits;
#endif
}
DEVICE uint32_t low_halves(uint32_t first, uint32_t second) { return (first & 0xffff) | second << 16; }
DEVICE uint32_t high_halves(uint32_t first, uint32_t second) { return first >> 16 | (second & 0xffff0000); }

// Dequantizes the weights of one block: (q - zero_point) scale.
template <int kBits>
class Dequantizer {
  static_assert(kBits == 2 || kBits == 4 || kBits == 8, "weights that do not cross bytes");
  static constexpr int kOffsets = 8 / kBits;  // number of values of o: weights in a byte

 public:
  static constexpr int kPairs = 16 / kBits;  // pairs of weights in a word

  // zero_point: the zero point of the block in the low bits. minus_base_[0] is -(1024 + z), where 1024 + z is the
  // rounding of 1024 plus the zero point to float16. z is therefore an integer unless the zero point is negative or
  // large.
  DEVICE Dequantizer(half_t scale, uint32_t zero_point, const ZeroPointFormat& format)
      : scale_(pair_of(scale, scale)) {
    const auto stored = bit_cast<HalfPair>(((zero_point & format.mask) | format.bits) * 0x10001);
    const auto added = bit_cast<HalfPair>(format.added);
    minus_base_[0] = multiply_add(stored, same(-1), added);
    const HalfPair rounded = multiply_add(added, same(-1), minus_base_[0]);
    const HalfPair error = multiply_add(rounded, same(1), stored);
    shift_ = multiply_add(multiply_add(error, same(-1), same(0)), scale_, same(0));
    // For weights at offset o, dequantize() adds -(1024 / 2^o + z).
    UNROLL for (int i = 1; i < kOffsets; ++i) {
      minus_base_[i] = multiply_add(minus_base_[0], same(1), same(1024 - (1024 >> i * kBits)));
    }
  }

  // Writes the weights of a word to `pairs`: pair i has weights i and i + kPairs.
  DEVICE void dequantize(uint32_t word, uint32_t* pairs) const {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001;
    UNROLL for (int i = 0; i < kPairs; ++i) {
      const int bit = i * kBits, o = bit % 8;
      const auto bits = bit_cast<HalfPair>(masked_or(word >> (bit - o), kMask << o, 0x64006400));
      // The bits of 1 / 2^o in float16.
      const auto factor =
          bit_cast<HalfPair>(static_cast<uint32_t>(15 - o) << 10 << 16 | static_cast<uint32_t>(15 - o) << 10);
      pairs[i] = bit_cast<uint32_t>(
          multiply_add(multiply_add(bits, factor, minus_base_[o / kBits]), scale_, shift_));
    }
  }

 private:
  DEVICE static HalfPair same(int x) {
    const half_t value = from_float<half_t>(static_cast<float>(x));
    return pair_of(value, value);
  }

  HalfPair scale_, shift_, minus_base_[kOffsets];
};

// Converts 2 kPairs elements, of which each word holds two consecutive ones, to the order of Dequantizer::dequantize.
template <int kPairs>
DEVICE void interleave(const uint32_t* consecutive, uint32_t* pairs) {
  UNROLL for (int i = 0; i < kPairs / 2; ++i) {
    pairs[2 * i] = low_halves(consecutive[i], consecutive[kPairs / 2 + i]);
    pairs[2 * i + 1] = high_halves(consecutive[i], consecutive[kPairs / 2 + i]);
  }
}
// The inverse of interleave().
template <int kPairs>
DEVICE void deinterleave(const uint32_t* pairs, uint32_t* consecutive) {
  UNROLL for (int i = 0; i < kPairs / 2; ++i) {
    consecutive[i] = low_halves(pairs[2 * i], pairs[2 * i + 1]);
    consecutive[kPairs / 2 + i] = high_halves(pairs[2 * i], pairs[2 * i + 1]);
  }
}

}  // namespace graphopt::hip
