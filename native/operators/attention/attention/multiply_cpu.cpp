// The two matrix multiplications of attention, in register tiles and in AMX tiles.
#include "operators/attention/attention/multiply_cpu.h"

#include <algorithm>

#include "cpu/microkernels/tiles.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Loads and multiplies elements of A and B, where B has type T. If T is Word, each word of A and of B holds two
// bfloat16 values, although A has the type float.
template <class T>
struct Operands {
  static Vec broadcast(const float* a) { return splat(*a); }
  static Vec load(const T* b) { return load_as_float(b); }
  static Vec multiply_add(Vec a, Vec b, Vec sum) { return sum + a * b; }
};
template <>
struct Operands<Word> {
  using Aliased = Word __attribute__((may_alias));
  static Words broadcast(const float* a) { return *reinterpret_cast<const Aliased*>(a) - Words{}; }
  static Words load(const Word* b) { return *reinterpret_cast<const UnalignedWords*>(b); }
  static Vec multiply_add(Words a, Words b, Vec sum) { return Bfloat16Pairs::multiply_add(a, b, sum); }
};

// C [kRows, kVectors * kWidth] = A [kRows, k] B [k, kVectors * kWidth], stored as specified by `result`.
template <int kRows, int kVectors, class T>
void multiply(const float* a, int64_t lda, const T* b, int64_t ldb, int64_t k, Result result, float* c,
              int64_t ldc, float* per_row) {
  Vec sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = Vec{};
  }
  for (int64_t step = 0; step < k; ++step, b += ldb) {
    decltype(Operands<T>::load(b)) row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = Operands<T>::load(b + j * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto x = Operands<T>::broadcast(a + i * lda + step);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = Operands<T>::multiply_add(x, row[j], sum[i][j]);
    }
  }
  if (result == Result::kAdd) {
    // The result of the previous blocks is added last: sums that started with it would lose digits with every key.
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] += load(c + i * ldc + j * kWidth) * per_row[i];
    }
  } else if (result == Result::kStoreWithMaxima) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      Vec most = load(per_row + i * kWidth);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) most = larger(sum[i][j], most);
      store(per_row + i * kWidth, most);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(c + i * ldc + j * kWidth, sum[i][j]);
  }
}

template <class T>
using Multiply = void (*)(const float*, int64_t, const T*, int64_t, int64_t, Result, float*, int64_t, float*);

template <int kVectors, class T>
inline Multiply<T> pick_rows(int64_t rows) {
  static constexpr Multiply<T> table[kMostRows] = {
      multiply<1, kVectors, T>,
      multiply<2, kVectors, T>,
      multiply<3, kVectors, T>,
      multiply<4, kVectors, T>,
      multiply<5, kVectors, T>,
      multiply<6, kVectors, T>,
      multiply<std::min(7, rows_of(kVectors)), kVectors, T>,
      multiply<std::min(8, rows_of(kVectors)), kVectors, T>,
  };
  return table[rows - 1];
}

template <class T>
inline Multiply<T> pick(int64_t rows, int64_t vectors) {
  if constexpr (kMaxVectors == 4) {
    if (vectors == 4) return pick_rows<kMaxVectors, T>(rows);
    if (vectors == 3) return pick_rows<kMaxVectors - 1, T>(rows);
  }
  return vectors == 2 ? pick_rows<2, T>(rows) : pick_rows<1, T>(rows);
}

}  // namespace

template <class T>
void multiply_attention(int64_t rows, int64_t vectors, const float* a, int64_t lda, const T* b, int64_t ldb,
                        int64_t k, Result result, float* c, int64_t ldc, float* per_row) {
  const int64_t step = rows_of(static_cast<int>(vectors));
  for (int64_t i = 0; i < rows; i += step) {
    const int64_t n = std::min(step, rows - i);
    pick<T>(n, vectors)(a + i * lda, lda, b, ldb, k, result, c + i * ldc, ldc,
                        per_row + i * (result == Result::kStoreWithMaxima ? kWidth : 1));
  }
}

GRAPHOPT_INSTANTIATE(multiply_attention)
template decltype(multiply_attention<Word>) multiply_attention<Word>;

#if defined(__AVX512F__)
template <class T>
void multiply_half(const float* a, int64_t lda, const T* b, int64_t ldb, int64_t k, float* c, int64_t ldc,
                   const float* factor) {
  using F = Operands<T>;
  using Lanes = decltype(F::load(b));
  Vec sum[kHalfRows][2], shared[kHalfRows / 2];
#pragma GCC unroll 8
  for (int i = 0; i < kHalfRows; ++i) sum[i][0] = sum[i][1] = shared[i / 2] = Vec{};
  for (int64_t step = 0; step < k; ++step, b += ldb) {
    const Lanes first = F::load(b), second = F::load(b + kWidth), half = F::load(b + 2 * kWidth);
#pragma GCC unroll 4
    for (int i = 0; i < kHalfRows; i += 2) {
      const Lanes x = F::broadcast(a + i * lda + step), y = F::broadcast(a + (i + 1) * lda + step);
      sum[i][0] = F::multiply_add(x, first, sum[i][0]);
      sum[i][1] = F::multiply_add(x, second, sum[i][1]);
      sum[i + 1][0] = F::multiply_add(y, first, sum[i + 1][0]);
      sum[i + 1][1] = F::multiply_add(y, second, sum[i + 1][1]);
      const auto both = (Lanes)_mm512_mask_blend_ps(0xff00, (__m512)x, (__m512)y);
      shared[i / 2] = F::multiply_add(both, half, shared[i / 2]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kHalfRows; ++i) {
    const Vec both = shared[i / 2];
    Vec row[3] = {sum[i][0], sum[i][1], _mm512_maskz_shuffle_f32x4(0xffff, both, both, i % 2 ? 0xee : 0x44)};
#pragma GCC unroll 3
    for (int j = 0; j < 3; ++j) {
      float* y = c + i * ldc + j * kWidth;
      if (factor != nullptr) row[j] += load(y) * factor[i];
      store(y, row[j]);
    }
  }
}

template decltype(multiply_half<float>) multiply_half<float>;
template decltype(multiply_half<Word>) multiply_half<Word>;
#endif

void multiply_attention_amx(int64_t rows, int64_t vectors, const Word* a, int64_t lda, const Word* b,
                            int64_t ldb, int64_t steps, float* c, int64_t ldc, const float* factor) {
  const int64_t tiles = ceil_div(steps, kTileSide), most = kBlockTiles * kWidth;
  alignas(64) float product[kBlockRows * most];
  for (int64_t i = 0; i < rows; i += kBlockRows) {
    const int64_t n = std::min(kBlockRows, rows - i);
    const Tiles of_a = {a + i * lda, kTileSide, kTileSide * lda, lda};
    for (int64_t j = 0; j < vectors; j += kBlockTiles) {
      const int64_t width = std::min(kBlockTiles, vectors - j);
      const Tiles of_b = {b + j * kWidth, kTileSide * ldb, kTileSide, ldb};
      float* y = c + i * ldc + j * kWidth;
      if (factor == nullptr) {
        multiply_block(ceil_div(n, kTileSide), width, of_a, of_b, tiles, y, ldc);
        continue;
      }
      multiply_block(ceil_div(n, kTileSide), width, of_a, of_b, tiles, product, most);
      for (int64_t row = 0; row < n; ++row, y += ldc) {
        for (int64_t d = 0; d < width * kWidth; d += kWidth) {
          store(y + d, load(y + d) * factor[i + row] + load(product + row * most + d));
        }
      }
    }
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
