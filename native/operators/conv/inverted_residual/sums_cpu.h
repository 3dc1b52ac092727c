// Register tiles of InvertedResidual: accumulators of up to kMaxRows pixels and one panel of output channels. For
// kernel files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <type_traits>

#include "cpu/microkernels/activation.h"
#include "cpu/microkernels/gemm.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Half of a vector with AVX-512: 256-bit arithmetic takes half the time of 512-bit arithmetic on Zen 4.
#if defined(__AVX512F__)
constexpr bool kHalves = true;
using Half = float __attribute__((vector_size(kWidth * 2), may_alias));
inline Half half_of(Vec v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }
#else
constexpr bool kHalves = false;
using Half = Vec;
inline Half half_of(Vec v) { return v; }
#endif

// Accumulators of kRows pixels and kVectors vectors of channels. With kHalf, the last one is half a vector.
template <int kRows, int kVectors, bool kHalf>
struct PixelSums {
  static constexpr int kFull = kVectors - (kHalf ? 1 : 0);
  Vec full[kRows][kFull > 0 ? kFull : 1];
  Half half[kRows];

  explicit PixelSums(const float* bias) {
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kFull; ++j) full[i][j] = load_aligned(bias + j * kWidth);
      if constexpr (kHalf) half[i] = half_of(load_aligned(bias + kFull * kWidth));
    }
  }

  // For k in [0, steps) and each pixel i, adds x[k * x_step + i * x_pixel] times the vectors at
  // w + k * kVectors * kWidth.
  // kFetch: each step also prefetches the cache line at `next`, and advances `next` by `prefetch_bytes`.
  template <bool kFetch = false>
  void multiply(const float* x, int64_t x_step, int64_t x_pixel, const float* w, int64_t steps,
                const char* next = nullptr, int64_t prefetch_bytes = 0) {
    for (int64_t k = 0; k < steps; ++k, x += x_step, w += kVectors * kWidth) {
      if constexpr (kFetch) {
        __builtin_prefetch(next, 0, 2);
        next += prefetch_bytes;
      }
      Vec v[kVectors];
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) v[j] = load_aligned(w + j * kWidth);
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
        const Vec value = splat(x[i * x_pixel]);
#pragma GCC unroll 2
        for (int j = 0; j < kFull; ++j) full[i][j] += value * v[j];
        if constexpr (kHalf) half[i] += half_of(value) * half_of(v[kFull]);
      }
    }
  }
};

// Divides `all` items into parts whose sizes differ by at most one. next() returns the size of the next part, without
// a division.
class BalancedParts {
 public:
  BalancedParts(int64_t all, int64_t parts)
      : parts_(std::max<int64_t>(parts, 1)), quotient_(all / parts_), remainder_(all % parts_) {}
  int64_t next() {
    carry_ += remainder_;
    if (carry_ < parts_) return quotient_;
    carry_ -= parts_;
    return quotient_ + 1;
  }

 private:
  int64_t parts_, quotient_, remainder_, carry_ = 0;
};

// Calls f(Rows<n>()) with n = rows, in [1, kMaxRows]: the number of rows becomes a compile-time constant.
template <int kRows>
using Rows = std::integral_constant<int, kRows>;
template <int kRows = kMaxRows, class F>
inline void with_rows(int64_t rows, const F& f) {
  if constexpr (kRows == 1) {
    f(Rows<1>());
  } else if (rows == kRows) {
    f(Rows<kRows>());
  } else {
    with_rows<kRows - 1>(rows, f);
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
