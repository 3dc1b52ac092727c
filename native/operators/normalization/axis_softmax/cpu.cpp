// A SIMD vector holds adjacent elements along the axes after the reduced axis, so no transposition is needed.
#include <algorithm>
#include <limits>

#include "blocks/half.h"
#include "cpu/microkernels/exp.h"
#include "cpu/parallel_for.h"
#include "operators/normalization/axis_softmax/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

constexpr int64_t kVectors = 4;  // vectors of columns processed at a time, with independent sums
constexpr int64_t kColumns = kVectors * L;

// Computes kCount vectors of columns. The last vector has n columns.
template <int64_t kCount, class T>
void columns(const T* x, T* y, int64_t D, int64_t stride, int64_t n) {
  Vec maximum[kCount], sum[kCount] = {};
  const auto count = [&](int64_t j) { return j + 1 == kCount ? n : L; };
  for (Vec& m : maximum) m = splat(-std::numeric_limits<float>::infinity());
  for (int64_t d = 0; d < D; ++d) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kCount; ++j)
      maximum[j] = larger(load_range(x + d * stride + j * L, 0, count(j)), maximum[j]);
  }
  for (int64_t d = 0; d < D; ++d) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kCount; ++j) {
      const int64_t at = d * stride + j * L;
      const Vec e = exp_nonpositive(load_range(x + at, 0, count(j)) - maximum[j]);
      sum[j] += e;
      store_part(y + at, e, count(j), false);
    }
  }
#pragma GCC unroll 4
  for (int64_t j = 0; j < kCount; ++j) sum[j] = 1.0f / sum[j];
  for (int64_t d = 0; d < D; ++d) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kCount; ++j) {
      T* at = y + d * stride + j * L;
      store_part(at, load_range(at, 0, count(j)) * sum[j], count(j), false);
    }
  }
}

}  // namespace

template <class T>
void axis_softmax(const AxisSoftmaxProblem& p, const T* x, T* y, Parallel& parallel) {
  const int64_t blocks = (p.inner + kColumns - 1) / kColumns;
  parallel_for(parallel, p.outer * blocks, [&](int64_t item, size_t) {
    const int64_t first = item % blocks * kColumns, at = item / blocks * p.D * p.inner + first;
    const int64_t n = std::min(kColumns, p.inner - first);
    if (n == kColumns) return columns<kVectors, T>(x + at, y + at, p.D, p.inner, L);
    for (int64_t i = 0; i < n; i += L) {
      columns<1, T>(x + at + i, y + at + i, p.D, p.inner, std::min(L, n - i));
    }
  });
}

GRAPHOPT_INSTANTIATE(axis_softmax)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
