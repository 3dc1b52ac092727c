// ReduceMean, ReduceSum, ReduceMax and ReduceMin of x [outer, R, inner] over R, in float32.
//
// Bound by memory: X is read once, for one FLOP an element. Rows (inner is 1) take a work-group each, columns
// a work-item each, so that neighbours read neighbours. scripts/gpu_bench.py sets both beside a copy.
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/reduction/args.h"

namespace graphopt::hip {

DEVICE float reduce_two(Reduction how, float a, float b) {
  if (how == Reduction::kSum) return a + b;
  const bool first = how == Reduction::kMax ? a > b : a < b;
  return first || a != a ? a : b;
}

// What a reduction over no elements gives.
DEVICE float reduce_none(Reduction how) {
  return how == Reduction::kSum ? 0.0f : how == Reduction::kMax ? -infinity() : infinity();
}

template <class T>
DEVICE void reduce_rows(const ReduceRowsArgs& args, WaveSums& lds) {
  const T* x = args.x;
  T* y = args.y;
  const uint32_t R = args.R;
  const Reduction how = args.how;
  const size_t row = static_cast<size_t>(static_cast<uint32_t>(block_x())) * R;
  const auto first = static_cast<uint32_t>(thread_x());
  float value = first < R ? to_float(x[row + first]) : reduce_none(how);
  for (uint32_t i = first + kReduceThreads; i < R; i += kReduceThreads) {
    value = reduce_two(how, value, to_float(x[row + i]));
  }
  if (how == Reduction::kMin) value = -value;
  value =
      how == Reduction::kSum ? group_sum(value, lds, kReduceThreads) : group_max(value, lds, kReduceThreads);
  if (how == Reduction::kMin) value = -value;
  if (thread_x() == 0) y[block_x()] = from_float<T>(value * args.scale);
}

template <class T>
DEVICE void reduce_columns(const ReduceColumnsArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const Divisor& inner = args.inner;
  const uint32_t i = static_cast<uint32_t>(block_x()) * kReduceThreads + static_cast<uint32_t>(thread_x());
  if (i >= args.total) return;
  const uint32_t outer = divide(i, inner), column = i - outer * inner.d;
  const T* from = x + static_cast<size_t>(outer) * args.R * inner.d + column;
  float value = reduce_none(args.how);
  for (uint32_t r = 0; r < args.R; ++r)
    value = reduce_two(args.how, value, to_float(from[static_cast<size_t>(r) * inner.d]));
  y[i] = from_float<T>(value * args.scale);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define REDUCE_KERNELS(T, suffix)                                      \
  KERNEL(reduce_rows_##suffix, kReduceThreads, ReduceRowsArgs, x, y) { \
    SHARED(WaveSums, lds);                                             \
    reduce_rows<T>(args, lds);                                         \
  }                                                                    \
  KERNEL(reduce_columns_##suffix, kReduceThreads, ReduceColumnsArgs, x, y) { reduce_columns<T>(args); }

REDUCE_KERNELS(float, f32)
REDUCE_KERNELS(half_t, f16)
