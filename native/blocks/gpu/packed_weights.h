// Converts weights of 2, 4 or 8 bits, packed with the low bits first, to float16.
//
// A weight q that is o bits above the lowest bit of its byte becomes the float16 1024 + 2^o q: with the exponent of 1024,
// the low bits of a float16 count units of 1. Two weights take one permutation of bytes, one mask, and two fused
// multiply-adds: one for q - base, which is exact, and one for (q - base) scale + shift (Y. J. Kim et al., "Who Says
// Elephants Can't Run: Bringing Large Scale MoE Models into Cloud Scale Production", 2022).
#pragma once

#include "device/platform.h"

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

// Returns the bytes kFirst, 3, kSecond and 3 of `word`, except that bytes 3 are 0x64.
template <int kFirst, int kSecond>
DEVICE uint32_t bytes_of(uint32_t word) {
  constexpr uint32_t kExponents = 0x64646464;
#if defined(__CUDACC__)
  return __byte_perm(word, kExponents, 0x4040 | kFirst | kSecond << 8);
#elif defined(__AMDGCN__)
  return __builtin_amdgcn_perm(kExponents, word, 0x04000400 | kFirst | kSecond << 16);
#else
  return (word >> 8 * kFirst & 0xff) | (word >> 8 * kSecond & 0xff) << 16 | (kExponents & 0xff00ff00);
#endif
}

// The format of the zero points.
struct PointKind {
  uint32_t mask, bits;  // a float16 is (stored & mask) | bits
  HalfPair added;       // the float16 minus `added` is 1024 + point

  // `stored`: 16 for float16, kBits for integers, 0 if there are no points and all are 2^(kBits - 1).
  template <int kBits>
  DEVICE static PointKind of(int stored) {
    const bool is_float = stored == 16;
    const half_t added = from_float<half_t>(is_float ? -1024.0f : 0.0f);
    return {(1u << stored) - 1,
            is_float      ? 0
            : stored == 0 ? 0x6400 | 1u << (kBits - 1)
                          : 0x6400,
            pair_of(added, added)};
  }
};

// Dequantizes the weights of one block: (q - point) scale.
template <int kBits>
class Dequantizer {
  static_assert(kBits == 2 || kBits == 4 || kBits == 8, "weights that do not cross bytes");
  // Offsets in bits of the first weight of pair i from the lowest bit of its byte, and of the second one.
  static constexpr int kApart = kBits == 8 ? 0 : kBits;
  DEVICE static constexpr int offset(int i) { return kBits == 2 ? i % 2 * 4 : 0; }
  static constexpr int kKinds = kBits == 2 ? 2 : 1;

 public:
  // `point`: the zero point of the block in its lowest bits. A point with a fraction is split: base is 1024 + point
  // rounded to float16, which is an integer unless the point is negative or large. q - base is exact.
  DEVICE Dequantizer(half_t scale, uint32_t point, const PointKind& kind) : scale_(pair_of(scale, scale)) {
    const auto stored = bit_cast<HalfPair>(((point & kind.mask) | kind.bits) * 0x10001);
    const HalfPair minus_base = multiply_add(stored, same(-1), kind.added);
    const HalfPair rounded = multiply_add(kind.added, same(-1), minus_base);
    const HalfPair error = multiply_add(rounded, same(1), stored);
    shift_ = multiply_add(multiply_add(error, same(-1), same(0)), scale_, same(0));
    UNROLL for (int i = 0; i < kKinds; ++i) {
      // The weights of a pair need -1024 / 2^o - point.
      const auto missing = [](int o) { return from_float<half_t>(static_cast<float>(1024 - (1024 >> o))); };
      minus_base_[i] =
          multiply_add(minus_base, same(1), pair_of(missing(offset(i)), missing(offset(i) + kApart)));
    }
  }

  // Returns weights 8 i to 8 i + 7 of those that begin at `words`.
  DEVICE Bits128 eight(const uint32_t* words, int i) const {
    constexpr int kWords = kBits == 8 ? 2 : 1;
    const uint32_t* const from = words + i * kBits / 4;
    uint32_t own[kWords];
    UNROLL for (int j = 0; j < kWords; ++j) own[j] = kBits == 2 ? from[0] >> i % 2 * 16 : from[j];
    struct Pairs {
      uint32_t v[4];
    } pairs = {{pair<0>(own), pair<1>(own), pair<2>(own), pair<3>(own)}};
    return bit_cast<Bits128>(pairs);
  }

 private:
  // Returns weights 2 i and 2 i + 1 of eight.
  template <int i>
  DEVICE uint32_t pair(const uint32_t* words) const {
    constexpr int kByte = i * kBits / 4 % 4, kOther = kBits == 8 ? kByte + 1 : kByte;
    constexpr int kFirst = offset(i), kSecond = kFirst + kApart;
    constexpr uint32_t kLow = ((1u << kBits) - 1) << kFirst, kHigh = ((1u << kBits) - 1) << kSecond;
    const uint32_t bits =
        bytes_of<kByte, kOther>(words[kBits == 8 ? i / 2 : 0]) & (0xff00ff00 | kLow | kHigh << 16);
    const auto factors = bit_cast<HalfPair>(reciprocal(kFirst) | reciprocal(kSecond) << 16);
    const HalfPair exact = multiply_add(bit_cast<HalfPair>(bits), factors, minus_base_[i % kKinds]);
    return bit_cast<uint32_t>(multiply_add(exact, scale_, shift_));
  }
  // Returns the bits of 1 / 2^o in float16.
  DEVICE static constexpr uint32_t reciprocal(int o) { return static_cast<uint32_t>(15 - o) << 10; }
  DEVICE static HalfPair same(int x) {
    const half_t value = from_float<half_t>(static_cast<float>(x));
    return pair_of(value, value);
  }

  HalfPair scale_, shift_, minus_base_[kKinds];
};

}  // namespace graphopt::hip
