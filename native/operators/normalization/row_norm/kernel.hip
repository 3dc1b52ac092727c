// FusedLayerNorm[Add[Sum]], FusedAdaLayerNorm[Add[Sum]] and FusedRmsNorm[Add[Sum]]: the norm over the last axis
// D of s = x + r. s is rounded to T, like the result of the Add that the operator replaces. Statistics are
// float32, and the variance is computed from deviations.
//
// Bound by memory. row_norm_* keeps a row in the registers of one work-group: X (and R) are read once, Y (and
// S) written once; about 8 FLOPs per element. row_norm_any_* is for rows that do not fit or are not aligned,
// and reads them three times. row_norm_* reached 80 to 99 % of a copy's bandwidth on an H200
// (docs/measurements/gpu_h200.md). row_norm_windows_* also reorders rows between image order and window order.
// Without R, X is in image order and Y in window order. With R, either Y or R is in window order. Launch:
// operators/normalization/row_norm/plan.cpp.
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/normalization/row_norm/args.h"

namespace graphopt::hip {

struct RowNormLds {
  WaveSums first, second;
};

// Returns the parameters of the work-group's row; null if `parameters` is null.
template <class T>
DEVICE const T* parameters_of(const RowNormArgs& args, const T* parameters) {
  if (args.gamma_step == 0 || parameters == nullptr) return parameters;
  const uint32_t image = divide(args.first_row + static_cast<uint32_t>(block_x()), args.image);
  return parameters + static_cast<size_t>(image) * args.gamma_step;
}

// The rows of x, residual and y that a work-group accesses. One of them may have another order than the
// work-groups. x is kNoRow for padding.
struct OtherRows {
  uint32_t x, residual, y;
};

template <bool kWindows>
DEVICE OtherRows other_rows(const RowNormArgs& args, bool has_residual) {
  const auto row = static_cast<uint32_t>(block_x());
  if constexpr (kWindows) {
    const auto by = [](uint32_t n, const Divisor& d) { return divide(n, d); };
    if (!has_residual) return {row_in_images(args.windows, args.first_row + row, by), row, row};
    const uint32_t window_row = row_in_windows(args.windows, args.first_row + row, by);
    return {row, args.into != 0 ? row : window_row, args.into != 0 ? window_row : row};
  }
  return {row, row, row};
}

DEVICE void write_statistics(const RowNormArgs& args, float mean, float scale) {
  float* statistics = args.statistics;
  if (thread_x() != 0 || statistics == nullptr) return;
  const auto row = static_cast<uint32_t>(block_x());
  statistics[row] = mean;
  statistics[args.rows + row] = scale;
}

// Requires that all pointers and rows are multiples of 16 bytes, and D is at most threads * kRowNormVectors *
// kSize.
template <class T, bool kWindows>
DEVICE void row_norm(const RowNormArgs& args) {
  SHARED(lds, RowNormLds);
  const T *x = args.x, *residual = args.residual;
  const T *gamma = parameters_of<T>(args, args.gamma), *beta = parameters_of<T>(args, args.beta);
  T *y = args.y, *sum = args.sum;
  const uint32_t D = args.D;
  const int threads = args.threads;
  constexpr int kSize = Pack<T>::kSize;
  const size_t row = static_cast<size_t>(static_cast<uint32_t>(block_x())) * D;
  const auto element = [&](int k) { return static_cast<uint32_t>(k * threads + thread_x()) * kSize; };
  const OtherRows other = other_rows<kWindows>(args, residual != nullptr);
  y += static_cast<size_t>(other.y) * D;
  if (kWindows && other.x == kNoRow) {
    UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
      if (element(k) < D) store_pack(y + element(k), Pack<T>{});
    }
    return;
  }
  x += static_cast<size_t>(other.x) * D;
  Pack<T> pack[kRowNormVectors];
  UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
    if (element(k) < D) pack[k] = load_pack(x + element(k));
  }
  if (residual != nullptr) {
    residual += static_cast<size_t>(other.residual) * D;
    Pack<T> add[kRowNormVectors];
    UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
      if (element(k) < D) add[k] = load_pack(residual + element(k));
    }
    UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
      if (element(k) >= D) continue;
      UNROLL for (int j = 0; j < kSize; ++j) {
        pack[k].v[j] = from_float<T>(to_float(pack[k].v[j]) + to_float(add[k].v[j]));
      }
      if (sum != nullptr) store_pack(sum + row + element(k), pack[k]);
    }
  }

  float mean = 0;
  if (args.rms == 0) {
    // The pivot is the row's first element. Without it, a large mean would cost digits of the sum. A row of equal
    // values has a variance of exactly 0.
    float pivot = to_float(*x);
    if (residual != nullptr) pivot = to_float(from_float<T>(pivot + to_float(*global(residual))));
    float s = 0;
    UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
      if (element(k) >= D) continue;
      UNROLL for (int j = 0; j < kSize; ++j) s += to_float(pack[k].v[j]) - pivot;
    }
    mean = pivot + group_sum(s, lds.first, threads) / static_cast<float>(D);
  }
  float s = 0;
  UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
    if (element(k) >= D) continue;
    UNROLL for (int j = 0; j < kSize; ++j) {
      const float d = to_float(pack[k].v[j]) - mean;
      s += d * d;
    }
  }
  const float scale = rsqrt_exact(group_sum(s, lds.second, threads) / static_cast<float>(D) + args.epsilon);
  write_statistics(args, mean, scale);

  UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
    if (element(k) >= D) continue;
    const Pack<T> g = load_pack(gamma + element(k));
    float value[kSize];
    UNROLL for (int j = 0; j < kSize; ++j) {
      value[j] = (to_float(pack[k].v[j]) - mean) * scale * to_float(g.v[j]);
    }
    if (beta != nullptr) {
      const Pack<T> b = load_pack(beta + element(k));
      UNROLL for (int j = 0; j < kSize; ++j) value[j] += to_float(b.v[j]);
    }
    Pack<T> out;
    UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = from_float<T>(value[j]);
    store_pack(y + element(k), out);
  }
}

template <class T, bool kWindows>
DEVICE void row_norm_any(const RowNormArgs& args) {
  SHARED(lds, RowNormLds);
  const T *x = args.x, *residual = args.residual;
  const T *gamma = parameters_of<T>(args, args.gamma), *beta = parameters_of<T>(args, args.beta);
  T *y = args.y, *sum = args.sum;
  const uint32_t D = args.D;
  const size_t row = static_cast<size_t>(static_cast<uint32_t>(block_x())) * D;
  const auto first = static_cast<uint32_t>(thread_x());
  const OtherRows other = other_rows<kWindows>(args, residual != nullptr);
  y += static_cast<size_t>(other.y) * D;
  if (kWindows && other.x == kNoRow) {
    for (uint32_t i = first; i < D; i += kRowNormAnyThreads) y[i] = from_float<T>(0.0f);
    return;
  }
  x += static_cast<size_t>(other.x) * D;
  if (residual != nullptr) residual += static_cast<size_t>(other.residual) * D;
  const auto value = [&](uint32_t i) {
    float v = to_float(x[i]);
    if (residual != nullptr) v = to_float(from_float<T>(v + to_float(global(residual)[i])));
    return v;
  };
  float mean = 0;
  if (args.rms == 0) {
    const float pivot = value(0);
    float s = 0;
    for (uint32_t i = first; i < D; i += kRowNormAnyThreads) s += value(i) - pivot;
    mean = pivot + group_sum(s, lds.first, kRowNormAnyThreads) / static_cast<float>(D);
  }
  float s = 0;
  for (uint32_t i = first; i < D; i += kRowNormAnyThreads) {
    const float d = value(i) - mean;
    s += d * d;
  }
  const float scale =
      rsqrt_exact(group_sum(s, lds.second, kRowNormAnyThreads) / static_cast<float>(D) + args.epsilon);
  write_statistics(args, mean, scale);
  for (uint32_t i = first; i < D; i += kRowNormAnyThreads) {
    const float v = value(i);
    float out = (v - mean) * scale * to_float(gamma[i]);
    if (beta != nullptr) out += to_float(beta[i]);
    if (sum != nullptr) sum[row + i] = from_float<T>(v);
    y[i] = from_float<T>(out);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(row_norm, (row_norm<T, false>), kRowNormMaxThreads, RowNormArgs, x, residual, gamma, beta, y,
              sum, statistics)
FLOAT_KERNELS(row_norm_any, (row_norm_any<T, false>), kRowNormAnyThreads, RowNormArgs, x, residual, gamma,
              beta, y, sum, statistics)
FLOAT_KERNELS(row_norm_windows, (row_norm<T, true>), kRowNormMaxThreads, RowNormArgs, x, residual, gamma,
              beta, y, sum, statistics)
FLOAT_KERNELS(row_norm_windows_any, (row_norm_any<T, true>), kRowNormAnyThreads, RowNormArgs, x, residual,
              gamma, beta, y, sum, statistics)
