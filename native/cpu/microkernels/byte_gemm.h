// Exact sums of products of an unsigned and a signed byte. For kernel files only (see cpu/isa.h).
//
// A word holds kBytes bytes at adjacent indices k. Each format splits the word of a column and the word of a row into
// kParts words ("parts"). It multiplies part i of the row by part i of the column, and adds the products to 32-bit
// sums, which wrap modulo 2^32.
#pragma once

#include <algorithm>

#include "cpu/microkernels/gemm.h"
#include "cpu/vnni.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

constexpr int64_t kBytes = 4;

#if defined(__AVX2__)
using Halves = int16_t __attribute__((vector_size(kWidth * 4)));

// A part has two bytes, extended to 16 bits.
struct Pairs {
  static constexpr int kParts = 2;
  static Words row_part(Words bytes, int part) { return (bytes >> (8 * part)) & 0x00ff00ffu; }
  static Words column_part(Words bytes, int part) {
    return part == 0 ? (Words)((Halves)(bytes << 8) >> 8) : (Words)((Halves)bytes >> 8);
  }
  static Words multiply_add(Words x, Words w, Words sum) {
    // Assembly, because with intrinsics GCC first adds the products of both parts, which needs too many registers.
    Words products;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(products) : "v"(x), "v"(w));
    return sum;
  }
};

// Multiplies the words of two adjacent steps at a time. vpmaddubsw multiplies bytes and adds two adjacent products in 16
// bits, where larger sums saturate. The sums of both steps are also added in 16 bits. This is exact for all rows and for
// columns with words that `fit`.
struct Eights {
  static constexpr int kParts = 1;
  // Returns whether no sum of products with the words of a column at two adjacent steps exceeds 16 bits.
  static bool fit(Word first, Word second) {
    for (int shift = 0; shift < 32; shift += 16) {
      int least = 0, most = 0;
      for (const Word word : {first, second}) {
        for (const int weight : {int8_t(word >> shift), int8_t(word >> (shift + 8))}) {
          least += std::min(weight, 0);
          most += std::max(weight, 0);
        }
      }
      if (UINT8_MAX * least < INT16_MIN || UINT8_MAX * most > INT16_MAX) return false;
    }
    return true;
  }
  static Words row_part(Words bytes, int) { return bytes; }
  static Words multiply_add(const Words (&x)[2], Words w0, Words w1, Words sum) {
    const Words ones = Words{} + 0x00010001u;
    Words first, second;
    // Assembly, because GCC otherwise reorders the additions, as in Pairs.
    asm("vpmaddubsw %5, %3, %1\n\tvpmaddubsw %6, %4, %2\n\tvpaddw %2, %1, %1\n\t"
        "vpmaddwd %7, %1, %1\n\tvpaddd %1, %0, %0"
        : "+v"(sum), "=&v"(first), "=&v"(second)
        : "v"(x[0]), "v"(x[1]), "vm"(w0), "vm"(w1), "vm"(ones));
    return sum;
  }
};

// A part has all four bytes, for VNNI. This is assembly because an intrinsic would require VNNI for the whole file,
// which also serves processors without it.
struct Fours {
  static constexpr int kParts = 1;
  static Words row_part(Words bytes, int) { return bytes; }
  static Words column_part(Words bytes, int) { return bytes; }
  static Words multiply_add(Words x, Words w, Words sum) {
#if defined(__AVX512F__)
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
#endif
    return sum;
  }
};
#else
// A part has one byte, extended to 32 bits, for any processor.
struct Singles {
  static constexpr int kParts = 4;
  static Words row_part(Words bytes, int part) { return (bytes >> (8 * part)) & 0xffu; }
  static Words column_part(Words bytes, int part) {
    return (Words)((IntVec)(bytes << (24 - 8 * part)) >> 24);
  }
  static Words multiply_add(Words x, Words w, Words sum) { return sum + x * w; }
};
#endif

// Calls f with the best format of this machine for any weights.
template <class F>
inline auto with_byte_format(const F& f) {
#if defined(__AVX2__)
  return has_vnni() ? f(Fours()) : f(Pairs());
#else
  return f(Singles());
#endif
}

// Returns true if an element of x is b or more, or NaN.
inline bool any_at_least(Vec x, float b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)x, (__m512)splat(b), _CMP_NLT_UQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, (__m256)splat(b), _CMP_NLT_UQ)) != 0;
#else
  for (int64_t lane = 0; lane < L; ++lane) {
    if (!(x[lane] < b)) return true;
  }
  return false;
#endif
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
