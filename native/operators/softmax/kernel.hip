// Softmax, LogSoftmax and LpNormalization, whose numbers are divided by a sum over their axis, in float32: a
// work-group for a row of the last axis, which it keeps in registers where it fits there, or for some
// neighbouring columns of another one. What does not fit is read two or three times, all but the first time
// from the cache.
//
// Bound by memory: X is read once and Y written once, for about 10 FLOPs an element. scripts/gpu_bench.py
// sets it beside a copy.
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/softmax/args.h"

namespace graphopt::hip {

// What is summed and what comes of the sum. kShifts: relative to the largest number, which `most` is.
struct Exponentials {
  static constexpr bool kShifts = true;
  int32_t how;
  float scale, shift;

  DEVICE float summand(float v, float most) const { return exp_fast(v - most); }
  DEVICE void finish(float most, float sum) {
    scale = 1.0f / sum;
    shift = most + 0.69314718f * log2_fast(sum);
  }
  DEVICE float result(float v, float most) const {
    return how == kLogSoftmax ? v - shift : exp_fast(v - most) * scale;
  }
};

struct Powers {
  static constexpr bool kShifts = false;
  int32_t how;
  float norm;

  DEVICE float summand(float v, float) const { return how == kRootOfSquares ? v * v : v < 0 ? -v : v; }
  DEVICE void finish(float, float sum) { norm = how == kRootOfSquares ? sqrt_exact(sum) : sum; }
  DEVICE float result(float v, float) const { return norm == 0 ? 0.0f : v / norm; }
};

struct SoftmaxLds {
  WaveSums most, sum;
};

// NaN stays.
DEVICE float larger(float v, float most) { return v > most || v != v ? v : most; }

// A row of at most kSoftmaxKept numbers for each work-item, which asks for all of them at once.
template <class T, class Of>
DEVICE void softmax_kept(const SoftmaxArgs& args, SoftmaxLds& lds) {
  Of of = {};
  of.how = args.how;
  const size_t row = static_cast<size_t>(static_cast<uint32_t>(block_x())) * args.D;
  const T* const x = static_cast<const T*>(args.x) + row;
  T* const y = static_cast<T*>(args.y) + row;
  const auto place = [&](int k) { return static_cast<uint32_t>(k * args.threads + thread_x()); };
  float v[kSoftmaxKept];
  UNROLL for (int k = 0; k < kSoftmaxKept; ++k) {
    v[k] = place(k) < args.D ? to_float(x[place(k)]) : Of::kShifts ? -infinity() : 0.0f;
  }
  float most = 0;
  if constexpr (Of::kShifts) {
    most = v[0];
    UNROLL for (int k = 1; k < kSoftmaxKept; ++k) most = larger(v[k], most);
    most = group_max(most, lds.most, args.threads);
  }
  float sum = 0;
  UNROLL for (int k = 0; k < kSoftmaxKept; ++k) {
    if (place(k) < args.D) sum += of.summand(v[k], most);
  }
  of.finish(most, group_sum(sum, lds.sum, args.threads));
  UNROLL for (int k = 0; k < kSoftmaxKept; ++k) {
    if (place(k) < args.D) y[place(k)] = from_float<T>(of.result(v[k], most));
  }
}

template <class T, class Of>
DEVICE void softmax(const SoftmaxArgs& args, SoftmaxLds& lds) {
  if (args.D <= kSoftmaxKept * static_cast<uint32_t>(args.threads)) return softmax_kept<T, Of>(args, lds);
  Of of = {};
  of.how = args.how;
  const T* x = args.x;
  T* y = args.y;
  const uint32_t D = args.D;
  const size_t row = static_cast<size_t>(static_cast<uint32_t>(block_x())) * D;
  const auto first = static_cast<uint32_t>(thread_x()), step = static_cast<uint32_t>(args.threads);
  float most = 0;
  if constexpr (Of::kShifts) {
    most = to_float(x[row]);
    for (uint32_t i = first; i < D; i += step) most = larger(to_float(x[row + i]), most);
    most = group_max(most, lds.most, args.threads);
  }
  float sum = 0;
  for (uint32_t i = first; i < D; i += step) sum += of.summand(to_float(x[row + i]), most);
  of.finish(most, group_sum(sum, lds.sum, args.threads));
  for (uint32_t i = first; i < D; i += step) {
    y[row + i] = from_float<T>(of.result(to_float(x[row + i]), most));
  }
}

struct SoftmaxColumnsLds {
  float values[kSoftmaxParts][kSoftmaxColumns];
};

template <class T, class Of>
DEVICE void softmax_of_columns(const SoftmaxColumnsArgs& args, SoftmaxColumnsLds& lds) {
  Of of = {};
  of.how = args.how;
  const T* x = args.x;
  T* y = args.y;
  const auto group = static_cast<uint32_t>(block_x());
  const uint32_t outer = divide(group, args.groups);
  const int lane = thread_x() % kSoftmaxColumns, part = thread_x() / kSoftmaxColumns;
  const uint32_t column = (group - outer * args.groups.d) * kSoftmaxColumns + static_cast<uint32_t>(lane);
  // Work-items beyond the last column compute it once more, and write nothing.
  const bool inside = column < args.inner;
  const size_t first = static_cast<size_t>(outer) * args.D * args.inner + (inside ? column : args.inner - 1);
  const auto at = [&](uint32_t i) { return first + static_cast<size_t>(i) * args.inner; };
  const auto begin = static_cast<uint32_t>(part);
  float most = -infinity();
  if constexpr (Of::kShifts) {
    for (uint32_t i = begin; i < args.D; i += kSoftmaxParts) most = larger(to_float(x[at(i)]), most);
    lds.values[part][lane] = most;
    barrier();
    UNROLL for (int p = 0; p < kSoftmaxParts; ++p) most = larger(lds.values[p][lane], most);
    barrier();
  }
  float sum = 0;
  for (uint32_t i = begin; i < args.D; i += kSoftmaxParts) sum += of.summand(to_float(x[at(i)]), most);
  lds.values[part][lane] = sum;
  barrier();
  sum = 0;
  UNROLL for (int p = 0; p < kSoftmaxParts; ++p) sum += lds.values[p][lane];
  if (!inside) return;
  of.finish(most, sum);
  for (uint32_t i = begin; i < args.D; i += kSoftmaxParts) {
    y[at(i)] = from_float<T>(of.result(to_float(x[at(i)]), most));
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define SOFTMAX_KERNEL(name, T, Of, suffix)                                                   \
  KERNEL(name##_##suffix, 1024, SoftmaxArgs, x, y) {                                          \
    SHARED(SoftmaxLds, lds);                                                                  \
    softmax<T, Of>(args, lds);                                                                \
  }                                                                                           \
  KERNEL(name##_columns_##suffix, kSoftmaxColumns* kSoftmaxParts, SoftmaxColumnsArgs, x, y) { \
    SHARED(SoftmaxColumnsLds, lds);                                                           \
    softmax_of_columns<T, Of>(args, lds);                                                     \
  }

SOFTMAX_KERNEL(softmax, float, Exponentials, f32)
SOFTMAX_KERNEL(softmax, half_t, Exponentials, f16)
SOFTMAX_KERNEL(lp_norm, float, Powers, f32)
SOFTMAX_KERNEL(lp_norm, half_t, Powers, f16)
