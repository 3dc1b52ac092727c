// Packs blocks of K and V, and rows of Q and O, for the matrix multiplications of attention. For kernel files only (see
// cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/microkernels/gemm.h"
#include "operators/attention/attention/multiply_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Computes y = scale * x for n elements of x with a stride, padded with zeros to full vectors.
template <class T>
inline void copy_row(const T* x, int64_t stride, int64_t n, float scale, float* y) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kWidth <= n; i += kWidth) store(y + i, scale * load_as_float(x + i));
    if (i < n) store(y + i, scale * load_first(x + i, n - i));
    return;
  }
  for (; i < n; ++i) y[i] = scale * static_cast<float>(x[i * stride]);
  for (; i < round_up(n, kWidth); ++i) y[i] = 0.0f;
}

template <class T>
inline void store_row(const float* x, float scale, int64_t n, T* y, int64_t stride) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kWidth <= n; i += kWidth) {
      const Vec v = scale * load(x + i);
      store(y + i, v);
    }
    if (i < n) store_part(y + i, scale * load(x + i), n - i, false);
    return;
  }
  for (; i < n; ++i) y[i * stride] = static_cast<T>(scale * x[i]);
}

// Loads kWidth elements with a stride; elements from index `n` on are zeros.
template <class T>
inline Vec load_with_stride(const T* x, int64_t stride, int64_t n) {
  if (stride == 1) return load_range(x, 0, n);
  alignas(64) float elements[kWidth] = {};
  for (int64_t i = 0; i < std::min<int64_t>(kWidth, n); ++i) elements[i] = static_cast<float>(x[i * stride]);
  return load_aligned(elements);
}

// Transposes kWidth vectors in place: swaps off-diagonal squares of decreasing size.
template <int kHalf>
inline void transpose(Vec (&r)[kWidth]) {
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    if (i & kHalf) continue;
    const Vec a = r[i], b = r[i + kHalf];
    r[i] = shuffle(a, b, Lower<kHalf>());
    r[i + kHalf] = shuffle(a, b, Upper<kHalf>());
  }
  if constexpr (kHalf > 1) transpose<kHalf / 2>(r);
}

// Packs K^T in panels [D, width of the panel] of kPanelFloats keys. The last panel has the remaining keys, padded with
// zeros to full vectors.
template <class T>
void pack_keys(const T* k, int64_t row_stride, int64_t col_stride, int64_t n, int64_t D, float* packed);

// Packs V as [n, width] floats; width is Dv rounded up to full vectors. If Dv ends within the first half of a vector,
// the second half repeats the first for multiply_half.
template <class T>
void pack_values(const T* v, int64_t row_stride, int64_t col_stride, int64_t n, int64_t Dv, int64_t width,
                 float* packed);

// The same as pack_keys in bfloat16 words: panels of [steps, width of the panel], with zeros after D.
template <class T>
void pack_keys_bf16(const T* k, int64_t row_stride, int64_t col_stride, int64_t n, int64_t D, int64_t steps,
                    Word* packed);

// The same as pack_values in bfloat16 words: [n / 2 rounded up, width], padded with zeros to full AMX tiles if AMX is
// used.
template <class T>
void pack_values_bf16(const T* v, int64_t row_stride, int64_t col_stride, int64_t n, int64_t Dv,
                      int64_t width, Word* packed);

// Stores the sum of 0 * V over n keys to zero_v [width]. The sum is NaN in columns of V with a NaN or an infinity.
// Returns whether there is such a column. Keys with probability 0 add this sum to O.
template <class T>
bool sum_zero_times(const T* v, int64_t row_stride, int64_t n, int64_t width, float* zero_v);

// The same for V as bfloat16 words.
bool sum_zero_times_bf16(const Word* v, int64_t n, int64_t width, float* zero_v);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
