// ReduceMean, ReduceSum, ReduceMax and ReduceMin of x [outer, R, inner] over R, in float32.
//
// Bound by memory: X is read once, for one FLOP an element. Rows (inner is 1) take a work-group each, columns
// a work-item each, so that neighbours read neighbours. scripts/gpu_bench.py sets both beside a copy.
#include "hip/platform.h"
#include "hip/reduce.h"

namespace graphopt::hip {

constexpr int kReduceThreads = 256;

enum Reduction : int32_t { kReduceSum, kReduceMax, kReduceMin };

DEVICE float reduce_two(int32_t how, float a, float b) {
  if (how == kReduceSum) return a + b;
  const bool first = how == kReduceMax ? a > b : a < b;
  return first || a != a ? a : b;
}

// What a reduction over no elements gives.
DEVICE float reduce_none(int32_t how) {
  return how == kReduceSum ? 0.0f : how == kReduceMax ? -infinity() : infinity();
}

// `scale` multiplies the result: 1 / R for a mean.
template <class T>
DEVICE void reduce_rows(const T* x, T* y, uint32_t R, int32_t how, float scale, WaveSums& lds) {
  const size_t row = static_cast<size_t>(static_cast<uint32_t>(block_x())) * R;
  const auto first = static_cast<uint32_t>(thread_x());
  float value = first < R ? to_float(x[row + first]) : reduce_none(how);
  for (uint32_t i = first + kReduceThreads; i < R; i += kReduceThreads) {
    value = reduce_two(how, value, to_float(x[row + i]));
  }
  if (how == kReduceMin) value = -value;
  value = how == kReduceSum ? group_sum(value, lds, kReduceThreads) : group_max(value, lds, kReduceThreads);
  if (how == kReduceMin) value = -value;
  if (thread_x() == 0) y[block_x()] = from_float<T>(value * scale);
}

template <class T>
DEVICE void reduce_columns(const T* x, T* y, uint32_t total, uint32_t R, Divisor inner, int32_t how,
                           float scale) {
  const uint32_t i = static_cast<uint32_t>(block_x()) * kReduceThreads + static_cast<uint32_t>(thread_x());
  if (i >= total) return;
  const uint32_t outer = divide(i, inner), column = i - outer * inner.d;
  const T* from = x + static_cast<size_t>(outer) * R * inner.d + column;
  float value = reduce_none(how);
  for (uint32_t r = 0; r < R; ++r)
    value = reduce_two(how, value, to_float(from[static_cast<size_t>(r) * inner.d]));
  y[i] = from_float<T>(value * scale);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define REDUCE_KERNELS(T, suffix)                                                                          \
  KERNEL(reduce_rows_##suffix, kReduceThreads, (const T* x, T* y, uint32_t R, int32_t how, float scale)) { \
    SHARED(WaveSums, lds);                                                                                 \
    reduce_rows(x, y, R, how, scale, lds);                                                                 \
  }                                                                                                        \
  KERNEL(reduce_columns_##suffix, kReduceThreads,                                                          \
         (const T* x, T* y, uint32_t total, uint32_t R, Divisor inner, int32_t how, float scale)) {        \
    reduce_columns(x, y, total, R, inner, how, scale);                                                     \
  }

REDUCE_KERNELS(float, f32)
REDUCE_KERNELS(half_t, f16)
