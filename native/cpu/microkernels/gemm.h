// Register-tiled matrix multiplication in float32, bfloat16 and 16-bit integers. For kernel files only (see cpu/isa.h).
//
// Both operands are arrays of 32-bit words, one for each row (or column) and step along K. A word is a
// float32 (Float32), or two bfloat16 values at adjacent indices k, the lower index first (Bfloat16Pairs). Bfloat16
// products are exact and added in float32. Instruction sets without bfloat16 give the same results up to the
// order of additions, but slower. The sums of ShortPairs are integers.
//
//   s [steps][rows]               the operand whose words are each broadcast to a vector
//   v [steps][kVectors * kWidth]  the operand that is read in vectors: a panel of at most kPanel vectors
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "blocks/half.h"
#include "cpu/microkernels/simd.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

using Word = uint32_t;
using AlignedWords = uint32_t __attribute__((vector_size(kWidth * 4), may_alias));
using UnalignedWords = uint32_t __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
using Words = uint32_t __attribute__((vector_size(kWidth * 4)));
using Shorts = uint16_t __attribute__((vector_size(kWidth * 4)));

#if defined(__AVX512F__)
constexpr int kMaxRows = 14;  // 14 x 2 accumulators, 2 vectors, 1 broadcast word: 31 of 32 registers
#elif defined(__AVX2__)
constexpr int kMaxRows = 6;
#else
constexpr int kMaxRows = 4;
#endif
constexpr int kPanel = 2;
constexpr int64_t kPanelWidth = kPanel * kWidth;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// --- Word formats -----------------------------------------------------------------------------------------

struct Float32 {
  static constexpr int64_t kDepth = 1;  // number of indices k in a word
  static constexpr bool kIntegers = false;
  static Vec multiply_add(Words s, Words v, Vec sum) {
    return sum + reinterpret_cast<Vec>(s) * reinterpret_cast<Vec>(v);
  }
  // Returns the words of kWidth rows (or columns) from their values at one index k.
  static Words make_words(Vec low, Vec) { return reinterpret_cast<Words>(low); }
};

// Return the lower and the upper of the two values in each word.
inline Vec first_of_pair(Words words) { return reinterpret_cast<Vec>(words << 16); }
inline Vec second_of_pair(Words words) { return reinterpret_cast<Vec>(words & (Words{} + 0xffff0000u)); }

struct Bfloat16Pairs {
  static constexpr int64_t kDepth = 2;
  static constexpr bool kIntegers = false;
  static Vec multiply_add(Words s, Words v, Vec sum) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sum, (__m512bh)s, (__m512bh)v);
#else
    sum += first_of_pair(s) * first_of_pair(v);
    return sum + second_of_pair(s) * second_of_pair(v);
#endif
  }
  // Returns the words of kWidth rows (or columns) from their values at k and at k + 1.
  static Words make_words(Vec low, Vec high) {
#if defined(__AVX512BF16__)
    // The lower half of a word holds `low`, the upper half `high`.
    const auto halves = (Shorts)_mm512_cvtne2ps_pbh(high, low);
    return (Words)__builtin_shufflevector(halves, halves, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                          23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#else
    return (rounded(low) >> 16) | rounded(high);
#endif
  }

 private:
#if !defined(__AVX512BF16__)
  // Rounds to bfloat16 and returns it as float32 bits; ties to even, NaN remains NaN.
  static Words rounded(Vec x) {
    const Words bits = reinterpret_cast<Words>(x), high = Words{} + 0xffff0000u;
    const Words near = (bits + 0x7fffu + ((bits >> 16) & 1u)) & high;
    const auto is_number = reinterpret_cast<Words>(x == x);
    return (near & is_number) | ((bits | 0x00400000u) & high & ~is_number);
  }
#endif
};

// Two 16-bit integers. The vectors of sums hold the bits of 32-bit integers, which wrap modulo 2^32.
struct ShortPairs {
  static constexpr int64_t kDepth = 2;
  static constexpr bool kIntegers = true;
  static Vec multiply_add(Words s, Words v, Vec sum) {
#if defined(__AVX2__)
    // With intrinsics GCC adds the products of two steps first, which needs more registers than there are.
    Words products;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(products) : "v"(s), "v"(v));
    return sum;
#else
    const Words low = (Words)((IntVec)(s << 16) >> 16) * (Words)((IntVec)(v << 16) >> 16);
    const Words high = (Words)((IntVec)s >> 16) * (Words)((IntVec)v >> 16);
    return reinterpret_cast<Vec>(reinterpret_cast<Words>(sum) + low + high);
#endif
  }
  static Words make_words(IntVec low, IntVec high) { return ((Words)low & 0xffffu) | ((Words)high << 16); }
  // The same from integers in float32.
  static Words make_words(Vec low, Vec high) {
    return make_words(__builtin_convertvector(low, IntVec), __builtin_convertvector(high, IntVec));
  }
};

// Returns the words of one row from 2 kWidth values at adjacent indices k: first those of a, then those of b.
inline Words pack_adjacent(Vec a, Vec b) {
#if defined(__AVX512BF16__)
  return (Words)_mm512_cvtne2ps_pbh(b, a);
#else
  alignas(64) float values[2 * kWidth], low[kWidth], high[kWidth];
  store_aligned(values, a);
  store_aligned(values + kWidth, b);
  for (int i = 0; i < kWidth; ++i) {
    low[i] = values[2 * i];
    high[i] = values[2 * i + 1];
  }
  return Bfloat16Pairs::make_words(load_aligned(low), load_aligned(high));
#endif
}

// Returns the words of one row for kWidth steps, from kWidth * E::kDepth values at x. Only the first n values
// exist; the others are zero.
template <class E, class T>
inline Words row_words(const T* x, int64_t n) {
  const Vec a = load_range(x, 0, n);
  if constexpr (E::kDepth == 1) {
    return reinterpret_cast<Words>(a);
  } else {
    return pack_adjacent(a, load_range(x + kWidth, 0, n - kWidth));
  }
}

// --- Memory -----------------------------------------------------------------------------------------------

// Returns the number of words of `columns` columns over `steps` steps, stored as panels:
// [panel][step][columns of a panel]. The last panel may be one vector wide.
inline int64_t panels_words(int64_t steps, int64_t columns) { return steps * round_up(columns, kWidth); }
inline int64_t panel_vectors(int64_t columns, int64_t panel) {
  return std::min<int64_t>(kPanel, ceil_div(columns, kWidth) - panel * kPanel);
}
inline Word* panel_at(Word* panels, int64_t steps, int64_t panel) {
  return panels + panel * steps * kPanelWidth;
}
inline const Word* panel_at(const Word* panels, int64_t steps, int64_t panel) {
  return panels + panel * steps * kPanelWidth;
}

// Packs rows of `n` elements, x_stride apart, as the operand s [steps][rows]. Writes up to kWidth words beyond its end.
template <class E, class T>
inline void pack_rows(const T* x, int64_t x_stride, int64_t rows, int64_t n, Word* s) {
  constexpr int64_t kSpan = kWidth * E::kDepth;
  alignas(64) Word by_row[kWidth * kWidth] = {}, by_step[kWidth * kWidth];
  const int64_t steps = ceil_div(n, E::kDepth);
  for (int64_t step = 0; step < steps; step += kWidth) {
    const int64_t k = step * E::kDepth;
    for (int64_t i = 0; i < rows; ++i) {
      *reinterpret_cast<AlignedWords*>(by_row + i * kWidth) =
          row_words<E>(x + i * x_stride + k, std::min(kSpan, n - k));
    }
    transpose(reinterpret_cast<const float*>(by_row), kWidth, reinterpret_cast<float*>(by_step), kWidth);
    for (int64_t j = 0; j < std::min<int64_t>(kWidth, steps - step); ++j) {
      // The words beyond this step are overwritten by the next step.
      *reinterpret_cast<UnalignedWords*>(s + (step + j) * rows) =
          *reinterpret_cast<const AlignedWords*>(by_step + j * kWidth);
    }
  }
}

// --- Multiplication ---------------------------------------------------------------------------------------

// Locates the words of a step in s and v. Panel: the steps are consecutive in both. Table: a table has the
// offset of each step in v. TableOfRows: a table has the offset of each step in s.
struct Panel {
  static constexpr bool kAligned = true;
  const Word* rows(const Word* s, int64_t step, int64_t rows) const { return s + step * rows; }
  const Word* at(const Word* v, int64_t step, int64_t vectors) const { return v + step * vectors * kWidth; }
};
struct Table {
  static constexpr bool kAligned = false;
  const int64_t* offsets;
  const Word* rows(const Word* s, int64_t step, int64_t rows) const { return s + step * rows; }
  const Word* at(const Word* v, int64_t step, int64_t) const { return v + offsets[step]; }
};
struct TableOfRows {
  static constexpr bool kAligned = true;
  const int64_t* offsets;
  const Word* rows(const Word* s, int64_t step, int64_t) const { return s + offsets[step]; }
  const Word* at(const Word* v, int64_t step, int64_t vectors) const { return v + step * vectors * kWidth; }
};

// An argument `each` of multiply(): the sums of row i start from begins[i] and are stored in o. Each step prefetches
// `prefetch_bytes` bytes, at most two cache lines, from `next` into the second-level cache for a later multiplication.
// With the default of 0 bytes, every step prefetches the same line, because this costs less than a branch.
struct StoreSums {
  static constexpr float kZeros[kMaxRows] = {};
  const float* begins = kZeros;
  const char* next = reinterpret_cast<const char*>(begins);
  int64_t prefetch_bytes = 0;

  Vec begin(int64_t i) const { return splat(begins[i]); }
  void step() {
    __builtin_prefetch(next, 0, 2);
    if (prefetch_bytes > 64) __builtin_prefetch(next + 64, 0, 2);
    next += prefetch_bytes;
  }
  template <int kRows, int kVectors>
  [[gnu::always_inline]] void end(const Vec (&sum)[kRows][kVectors], float* o) const {
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) store_aligned(o + (i * kVectors + j) * kWidth, sum[i][j]);
    }
  }
};

// Computes kRows by kVectors vectors of sums over all steps; s [steps][kRows]. each.begin(i) returns the initial value
// of the sums of row i, and each.step() is called in every step. each.end() stores the sums, in o [kRows][kVectors *
// kWidth] or elsewhere.
template <class E, int kRows, int kVectors, class Steps, class Each>
[[gnu::always_inline]] inline void multiply(const Word* s, const Word* v, Steps at, int64_t steps, float* o,
                                            Each each) {
  Vec sum[kRows][kVectors];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    const Vec begin = each.begin(i);
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) sum[i][j] = begin;
  }
  for (int64_t step = 0; step < steps; ++step) {
    const Word *row = at.rows(s, step, kRows), *column = at.at(v, step, kVectors);
    each.step();
    Words b[kVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      if constexpr (Steps::kAligned) {
        b[j] = *reinterpret_cast<const AlignedWords*>(column + j * kWidth);
      } else {
        b[j] = *reinterpret_cast<const UnalignedWords*>(column + j * kWidth);
      }
    }
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
      const Words a = row[i] - Words{};
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) sum[i][j] = E::multiply_add(a, b[j], sum[i][j]);
    }
  }
  each.end(sum, o);
}

// Returns Of<rows>::run; `rows` is at most kMaxRows.
template <template <int> class Of>
inline auto of_rows(int64_t rows) {
  static constexpr decltype(&Of<1>::run) table[] = {
      Of<1>::run, Of<2>::run, Of<3>::run, Of<4>::run,
#if defined(__AVX2__)
      Of<5>::run, Of<6>::run,
#endif
#if defined(__AVX512F__)
      Of<7>::run, Of<8>::run, Of<9>::run, Of<10>::run, Of<11>::run, Of<12>::run, Of<13>::run, Of<14>::run,
#endif
  };
  static_assert(sizeof(table) / sizeof(table[0]) == kMaxRows);
  return table[rows - 1];
}

template <class E, int kVectors, class Steps, class Each>
struct Multiply {
  template <int kRows>
  struct Of {
    static void run(const Word* s, const Word* v, Steps at, int64_t steps, float* o, Each each) {
      multiply<E, kRows, kVectors>(s, v, at, steps, o, each);
    }
  };
};

// Returns multiply() for at most kMaxRows rows and kPanel vectors.
template <class E, class Steps, class Each>
auto pick_multiply(int64_t rows, int64_t vectors) {
  return vectors == kPanel ? of_rows<Multiply<E, kPanel, Steps, Each>::template Of>(rows)
                           : of_rows<Multiply<E, 1, Steps, Each>::template Of>(rows);
}

// Computes the sums of at most kMaxRows rows and kPanel vectors, and stores them in o. All kernels share one
// copy of this function, in gemm.cpp.
template <class E, class Steps>
void multiply_rows(int64_t rows, int64_t vectors, const Word* s, const Word* v, Steps at, int64_t steps,
                   float* o, const StoreSums& each);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
