// Softmax, LogSoftmax and LpNormalization, in float32. A work-group processes a row of the last axis, or
// adjacent columns of another axis. In float16, a work-item can process two columns. Elements are kept in
// registers if they fit. Otherwise they are read two or three times; only the first read is from memory.
//
// Bound by memory: X is read once and Y written once, for about 10 FLOPs per element. scripts/gpu_bench.py
// compares the kernels with a copy.
#include "blocks/gpu/reduce.h"
#include "blocks/gpu/vec.h"
#include "device/platform.h"
#include "operators/normalization/softmax/args.h"

namespace graphopt::hip {

// Softmax and LogSoftmax: the terms of the sum over an axis, and the results computed from the sum. kShifts:
// elements are relative to `maximum`, the largest element.
struct Exponentials {
  static constexpr bool kShifts = true;
  int32_t function;
  float scale, shift;

  DEVICE float summand(float v, float maximum) const { return exp_fast(v - maximum); }
  DEVICE void finish(float maximum, float sum) {
    scale = 1.0f / sum;
    shift = maximum + 0.69314718f * log2_fast(sum);
  }
  DEVICE float result(float v, float maximum) const {
    return function == kLogSoftmax ? v - shift : exp_fast(v - maximum) * scale;
  }
};

// The same for LpNormalization.
struct Powers {
  static constexpr bool kShifts = false;
  int32_t function;
  float norm;

  DEVICE float summand(float v, float) const { return function == kRootOfSquares ? v * v : v < 0 ? -v : v; }
  DEVICE void finish(float, float sum) { norm = function == kRootOfSquares ? sqrt_exact(sum) : sum; }
  DEVICE float result(float v, float) const { return norm == 0 ? 0.0f : v / norm; }
};

struct SoftmaxLds {
  WaveSums maximum, sum;
};

// Returns the larger of v and maximum; NaN if one of them is NaN.
DEVICE float larger(float v, float maximum) { return v > maximum || v != v ? v : maximum; }

// Processes a row of at most kSoftmaxKept elements per work-item, which are all loaded at once.
template <class T, class Of>
DEVICE void softmax_kept(const SoftmaxArgs& args, SoftmaxLds& lds) {
  Of of = {};
  of.function = args.function;
  const size_t row = static_cast<size_t>(static_cast<uint32_t>(block_x())) * args.D;
  const T* const x = static_cast<const T*>(args.x) + row;
  T* const y = static_cast<T*>(args.y) + row;
  const auto index = [&](int k) { return static_cast<uint32_t>(k * args.threads + thread_x()); };
  float v[kSoftmaxKept];
  UNROLL for (int k = 0; k < kSoftmaxKept; ++k) {
    v[k] = index(k) < args.D ? to_float(x[index(k)]) : Of::kShifts ? -infinity() : 0.0f;
  }
  float maximum = 0;
  if constexpr (Of::kShifts) {
    maximum = v[0];
    UNROLL for (int k = 1; k < kSoftmaxKept; ++k) maximum = larger(v[k], maximum);
    maximum = group_max(maximum, lds.maximum, args.threads);
  }
  float sum = 0;
  UNROLL for (int k = 0; k < kSoftmaxKept; ++k) {
    if (index(k) < args.D) sum += of.summand(v[k], maximum);
  }
  of.finish(maximum, group_sum(sum, lds.sum, args.threads));
  UNROLL for (int k = 0; k < kSoftmaxKept; ++k) {
    if (index(k) < args.D) y[index(k)] = from_float<T>(of.result(v[k], maximum));
  }
}

template <class T, class Of>
DEVICE void softmax(const SoftmaxArgs& args) {
  SHARED(lds, SoftmaxLds);
  if (args.D <= kSoftmaxKept * static_cast<uint32_t>(args.threads)) return softmax_kept<T, Of>(args, lds);
  Of of = {};
  of.function = args.function;
  const T* x = args.x;
  T* y = args.y;
  const uint32_t D = args.D;
  const size_t row = static_cast<size_t>(static_cast<uint32_t>(block_x())) * D;
  const auto first = static_cast<uint32_t>(thread_x()), step = static_cast<uint32_t>(args.threads);
  float maximum = 0;
  if constexpr (Of::kShifts) {
    maximum = to_float(x[row]);
    for (uint32_t i = first; i < D; i += step) maximum = larger(to_float(x[row + i]), maximum);
    maximum = group_max(maximum, lds.maximum, args.threads);
  }
  float sum = 0;
  for (uint32_t i = first; i < D; i += step) sum += of.summand(to_float(x[row + i]), maximum);
  of.finish(maximum, group_sum(sum, lds.sum, args.threads));
  for (uint32_t i = first; i < D; i += step) {
    y[row + i] = from_float<T>(of.result(to_float(x[row + i]), maximum));
  }
}

template <int kWidth>
struct SoftmaxColumnsLds {
  Vec<float, kWidth> of[kSoftmaxParts][kSoftmaxColumns];
};

// kKept: a work-item keeps its elements in registers, at most kSoftmaxKept of each column.
template <class T, class Of, int kWidth, bool kKept>
DEVICE void softmax_of_columns(const SoftmaxColumnsArgs& args, SoftmaxColumnsLds<kWidth>& lds) {
  using Values = Vec<float, kWidth>;
  const auto group = static_cast<uint32_t>(block_x());
  const uint32_t outer = divide(group, args.groups);
  const auto thread = static_cast<uint32_t>(thread_x());
  const uint32_t in_group = thread % kSoftmaxColumns, part = thread / kSoftmaxColumns;
  const uint32_t column = ((group - outer * args.groups.d) * kSoftmaxColumns + in_group) * kWidth;
  // Work-items beyond the last column compute the last column again, and write nothing.
  const bool inside = column < args.inner;
  const size_t first =
      static_cast<size_t>(outer) * args.D * args.inner + (inside ? column : args.inner - kWidth);
  const T* const x = static_cast<const T*>(args.x) + first;
  T* const y = static_cast<T*>(args.y) + first;
  const auto row = [&](uint32_t i) { return load_vec<kWidth>(x + static_cast<size_t>(i) * args.inner); };
  const auto to_floats = [](const Vec<T, kWidth>& in) {
    Values values;
    UNROLL for (int w = 0; w < kWidth; ++w) values.v[w] = to_float(in.v[w]);
    return values;
  };
  const auto index = [part](uint32_t k) { return part + k * kSoftmaxParts; };
  Vec<T, kWidth> kept[kKept ? kSoftmaxKept : 1];
  if constexpr (kKept) {
    UNROLL for (uint32_t k = 0; k < kSoftmaxKept; ++k) {
      if (k * kSoftmaxParts >= args.D) break;
      kept[k] = row(index(k) < args.D ? index(k) : args.D - 1);
    }
  }
  // Calls visit(elements of a row, its index) for all rows of the work-item. Rows from D on repeat the last row.
  const auto each = [&](const auto& visit) {
    if constexpr (kKept) {
      UNROLL for (uint32_t k = 0; k < kSoftmaxKept; ++k) {
        if (k * kSoftmaxParts >= args.D) break;
        visit(to_floats(kept[k]), index(k));
      }
    } else {
      for (uint32_t i = part; i < args.D; i += kSoftmaxParts) visit(to_floats(row(i)), i);
    }
  };
  // Reduces the values of all work-items of a column by combine(a, b).
  const auto reduce_parts = [&](const Values& own, const auto& combine) {
    lds.of[part][in_group] = own;
    barrier();
    Values all = lds.of[0][in_group];
    UNROLL for (int p = 1; p < kSoftmaxParts; ++p) {
      UNROLL for (int w = 0; w < kWidth; ++w) all.v[w] = combine(all.v[w], lds.of[p][in_group].v[w]);
    }
    return all;
  };
  Values maximum, sum = {};
  UNROLL for (int w = 0; w < kWidth; ++w) maximum.v[w] = -infinity();
  if constexpr (Of::kShifts) {
    each([&](const Values& values, uint32_t) {
      UNROLL for (int w = 0; w < kWidth; ++w) maximum.v[w] = larger(values.v[w], maximum.v[w]);
    });
    maximum = reduce_parts(maximum, [](float a, float b) { return larger(b, a); });
    barrier();
  }
  Of of[kWidth] = {};
  UNROLL for (int w = 0; w < kWidth; ++w) of[w].function = args.function;
  each([&](const Values& values, uint32_t i) {
    UNROLL for (int w = 0; w < kWidth; ++w) {
      sum.v[w] += i < args.D ? of[w].summand(values.v[w], maximum.v[w]) : 0.0f;
    }
  });
  sum = reduce_parts(sum, [](float a, float b) { return a + b; });
  if (!inside) return;
  UNROLL for (int w = 0; w < kWidth; ++w) of[w].finish(maximum.v[w], sum.v[w]);
  each([&](const Values& values, uint32_t i) {
    if (i >= args.D) return;
    Vec<T, kWidth> out;
    UNROLL for (int w = 0; w < kWidth; ++w) {
      out.v[w] = from_float<T>(of[w].result(values.v[w], maximum.v[w]));
    }
    store_vec(y + static_cast<size_t>(i) * args.inner, out);
  });
}

template <class T, class Of, int kWidth>
DEVICE void softmax_columns(const SoftmaxColumnsArgs& args) {
  SHARED(lds, SoftmaxColumnsLds<kWidth>);
  if (args.D <= kSoftmaxKept * kSoftmaxParts) {
    softmax_of_columns<T, Of, kWidth, true>(args, lds);
  } else {
    softmax_of_columns<T, Of, kWidth, false>(args, lds);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(softmax, (softmax<T, Exponentials>), 1024, SoftmaxArgs, x, y)
FLOAT_KERNELS(lp_norm, (softmax<T, Powers>), 1024, SoftmaxArgs, x, y)

constexpr int kColumnsThreads = kSoftmaxColumns * kSoftmaxParts;
FLOAT_KERNELS(softmax_columns, (softmax_columns<T, Exponentials, 1>), kColumnsThreads, SoftmaxColumnsArgs, x,
              y)
KERNEL_OF(softmax_column_pairs_f16, (softmax_columns<half_t, Exponentials, 2>), kColumnsThreads,
          SoftmaxColumnsArgs, x, y)
FLOAT_KERNELS(lp_norm_columns, (softmax_columns<T, Powers, 1>), kColumnsThreads, SoftmaxColumnsArgs, x, y)
KERNEL_OF(lp_norm_column_pairs_f16, (softmax_columns<half_t, Powers, 2>), kColumnsThreads, SoftmaxColumnsArgs,
          x, y)
