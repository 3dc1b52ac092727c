// The matrix multiplications of attention: scores = Q K^T and O = p V. For kernel files only (see cpu/isa.h).
#pragma once

#include <cstdint>

#include "cpu/microkernels/gemm.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

#if defined(__AVX512F__)
constexpr int kMaxVectors = 4;  // the most vectors in a row of a register tile, which has rows_of() rows
constexpr int rows_of(int vectors) { return vectors == 4 ? 6 : 8; }
#else
constexpr int kMaxVectors = 2;
constexpr int rows_of(int vectors) { return vectors == 2 ? 6 : 8; }
#endif
constexpr int kMostRows = 8;  // the largest rows_of()
constexpr int64_t kPanelFloats = int64_t{kMaxVectors} * kWidth;

// How a matrix product P = A B is stored to C.
enum class Result {
  kStore,            // C = P
  kStoreWithMaxima,  // C = P; `per_row` has kWidth running maxima for each row, updated with the row of P
  kAdd,              // C = C * per_row[row] + P
};

// C [rows, vectors * kWidth] = A B, stored as specified by `result`, for up to kMaxVectors vectors and any number of
// rows. If T is Word, each word of A and of B holds two bfloat16 values, although A has the type float.
template <class T>
void multiply_attention(int64_t rows, int64_t vectors, const float* a, int64_t lda, const T* b, int64_t ldb,
                        int64_t k, Result result, float* c, int64_t ldc, float* per_row);

#if defined(__AVX512F__)
constexpr int kHalfRows = 8;

// C = C * factor[row] + A B, or A B if `factor` is null. C has kHalfRows rows of two and a half vectors, for example
// for Dv = 40. The half vectors of two rows share an accumulator. In each row of B and C, the last half vector repeats
// the half vector before it.
template <class T>
void multiply_half(const float* a, int64_t lda, const T* b, int64_t ldb, int64_t k, float* c, int64_t ldc,
                   const float* factor);
#endif

// Computes C [rows, vectors * kWidth] = A B, or C * factor[row] + A B if `factor` is not null, in AMX tiles. Without
// `factor`, writes all rows of the last tile, also rows beyond `rows`.
void multiply_attention_amx(int64_t rows, int64_t vectors, const Word* a, int64_t lda, const Word* b,
                            int64_t ldb, int64_t steps, float* c, int64_t ldc, const float* factor);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
