// Vectors of bytes: interleaves four rows to words, and extracts bytes from words. For kernel files only (see
// cpu/isa.h).
#pragma once

#include <cstring>
#include <utility>

#include "cpu/microkernels/gemm.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

using Bytes = uint8_t __attribute__((vector_size(kWidth)));
using UnalignedBytes = uint8_t __attribute__((vector_size(kWidth), aligned(1), may_alias));

constexpr int64_t kSpan = 4 * kWidth;  // bytes in a vector
constexpr int kPlanes = 4;             // number of vectors that hold kSpan words, one for each column

using ByteVec = uint8_t __attribute__((vector_size(kSpan)));
using PairVec = uint16_t __attribute__((vector_size(kSpan)));
using UnalignedByteVec = uint8_t __attribute__((vector_size(kSpan), aligned(1), may_alias));

// interleave(a, b, c, d) returns one word for each column. Returns the column of the word in `lane` of vector `plane`.
constexpr int64_t column_of_word(int64_t plane, int64_t lane) { return lane / 4 * 16 + plane * 4 + lane % 4; }

// Indices that interleave two vectors of kElements elements in each 128-bit lane: their lower halves if kFirst is 0,
// their upper halves if kFirst is 1.
template <int kElements, int kFirst>
struct InterleavedLanes {
  static constexpr int kLane = kElements / (static_cast<int>(kSpan) / 16);
  static constexpr int at(int i) {
    return i / kLane * kLane + kFirst * kLane / 2 + i % kLane / 2 + i % 2 * kElements;
  }
};
template <int kFirst, class V, int... kIndex>
inline V interleave(V a, V b, std::integer_sequence<int, kIndex...>) {
  using At = InterleavedLanes<static_cast<int>(sizeof...(kIndex)), kFirst>;
  return __builtin_shufflevector(a, b, At::at(kIndex)...);
}
template <int kFirst>
inline PairVec interleave(ByteVec a, ByteVec b) {
  return (PairVec)interleave<kFirst>(a, b, std::make_integer_sequence<int, kSpan>());
}
template <int kFirst>
inline Words interleave(PairVec a, PairVec b) {
  return (Words)interleave<kFirst>(a, b, std::make_integer_sequence<int, kSpan / 2>());
}

struct Planes {
  Words words[kPlanes];
};

// Returns a word of four bytes for each column: byte 0 from row a, byte 3 from row d.
inline Planes interleave(ByteVec a, ByteVec b, ByteVec c, ByteVec d) {
  const PairVec ab[] = {interleave<0>(a, b), interleave<1>(a, b)};
  const PairVec cd[] = {interleave<0>(c, d), interleave<1>(c, d)};
  return {{interleave<0>(ab[0], cd[0]), interleave<1>(ab[0], cd[0]), interleave<0>(ab[1], cd[1]),
           interleave<1>(ab[1], cd[1])}};
}

// `v` has a word for each of kSpan columns, in the order of interleave(). Returns the low byte of each word, in the
// order of the columns.
inline ByteVec low_bytes(const IntVec (&v)[kPlanes]) {
  const IntVec low = IntVec{} + 0xff;
#if defined(__AVX512F__)
  const __m512i ab = _mm512_packus_epi32((__m512i)(v[0] & low), (__m512i)(v[1] & low));
  const __m512i cd = _mm512_packus_epi32((__m512i)(v[2] & low), (__m512i)(v[3] & low));
  return (ByteVec)_mm512_packus_epi16(ab, cd);
#elif defined(__AVX2__)
  const __m256i ab = _mm256_packus_epi32((__m256i)(v[0] & low), (__m256i)(v[1] & low));
  const __m256i cd = _mm256_packus_epi32((__m256i)(v[2] & low), (__m256i)(v[3] & low));
  return (ByteVec)_mm256_packus_epi16(ab, cd);
#else
  ByteVec y;
  for (int64_t plane = 0; plane < kPlanes; ++plane) {
    for (int64_t lane = 0; lane < L; ++lane) {
      y[column_of_word(plane, lane)] = static_cast<uint8_t>(v[plane][lane] & low[0]);
    }
  }
  return y;
#endif
}

// Returns the low byte of each element.
inline Bytes low_bytes(IntVec v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Without AVX-512, GCC compiles the conversion below to code for single elements.
  const __m256i low = _mm256_set1_epi32(0x0c080400);  // indices of the low bytes in a 128-bit lane
  const __m256i words = _mm256_shuffle_epi8((__m256i)v, low);
  const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  return (Bytes)_mm_cvtsi128_si64(both);
#else
  return __builtin_convertvector(v, Bytes);
#endif
}

// Stores the first n bytes, n < kSpan.
inline void store_first(uint8_t* y, const ByteVec& v, int64_t n) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&v);
  int64_t at = 0;
#pragma GCC unroll 6
  for (int64_t size = kSpan / 2; size > 0; size /= 2) {
    if ((n & size) == 0) continue;
    std::memcpy(y + at, bytes + at, static_cast<size_t>(size));
    at += size;
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
