// FusedLayerNorm[Add[Sum]], FusedAdaLayerNorm[Add[Sum]] and FusedRmsNorm[Add[Sum]]: the norm over the last axis
// D of s = x + r. s is rounded to T, like the result of the Add that the operator replaces. Statistics are
// float32, and the variance is computed from deviations.
//
// Bound by memory. row_norm_* keeps a short row in the registers of a part of a wave, and a longer row in those of a
// work-group. X (and R) are read once and Y (and S) are written once; about 8 FLOPs per element. row_norm_any_* is
// for rows that do not fit or are not aligned, and reads them three times (twice in RMS norms). row_norm_* reached
// 80 to 99 % of a copy's bandwidth on an H200 (docs/measurements/gpu_h200.md). row_norm_windows_* also reorders rows
// between image order and window order.
// Without R, X is in image order and Y in window order. With R, either Y or R is in window order. Launch:
// operators/normalization/row_norm/plan.cpp.
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/normalization/row_norm/args.h"

namespace graphopt::hip {

struct RowNormLds {
  WaveSums first, second;
};

// Returns the parameters of a row of the launch; null if `parameters` is null.
template <class T>
DEVICE const T* parameters_of(const RowNormArgs& args, const T* parameters, uint32_t row) {
  if (args.gamma_step == 0 || parameters == nullptr) return parameters;
  const uint32_t image = divide(args.first_row + row, args.image);
  return parameters + static_cast<size_t>(image) * args.gamma_step;
}

// The rows of x, residual and y for a row of the launch. One of them may differ from that row. x is kNoRow for padding.
struct TensorRows {
  uint32_t x, residual, y;
};

template <bool kWindows>
DEVICE TensorRows tensor_rows(const RowNormArgs& args, bool has_residual, uint32_t row) {
  if constexpr (kWindows) {
    const auto by = [](uint32_t n, const Divisor& d) { return divide(n, d); };
    if (!has_residual) return {row_in_images(args.windows, args.first_row + row, by), row, row};
    const uint32_t window_row = row_in_windows(args.windows, args.first_row + row, by);
    return {row, args.into != 0 ? row : window_row, args.into != 0 ? window_row : row};
  }
  return {row, row, row};
}

DEVICE void write_statistics(const RowNormArgs& args, uint32_t row, float mean, float scale) {
  float* statistics = args.statistics;
  if (statistics == nullptr) return;
  statistics[row] = mean;
  statistics[args.rows + row] = scale;
}

// Returns the sum of x over the `row_items` work-items of a row: a part of a wave, or the work-group.
DEVICE float row_sum(float x, WaveSums& slots, int row_items) {
  if (row_items > kWave) return group_sum(x, slots, row_items);
  for (int mask = row_items / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// Requires that all pointers and rows are multiples of 16 bytes, and D is at most row_items * kRowNormVectors * kSize.
template <class T, bool kWindows>
DEVICE void row_norm(const RowNormArgs& args) {
  SHARED(lds, RowNormLds);
  const T *x = args.x, *residual = args.residual;
  T *y = args.y, *sum = args.sum;
  const uint32_t D = args.D;
  const auto row_items = static_cast<int>(args.row_items.d);
  constexpr int kSize = Pack<T>::kSize;
  const auto part = static_cast<int>(divide(static_cast<uint32_t>(thread_x()), args.row_items)),
             item = thread_x() - part * row_items;
  const uint32_t own_row = static_cast<uint32_t>(block_x()) * args.group_rows + static_cast<uint32_t>(part);
  // Every work-item of a wave takes part in the sums. Work-items beyond the last row compute it again and do not store
  // it.
  const bool is_row = own_row < args.count;
  const uint32_t row = is_row ? own_row : args.count - 1;
  const T *gamma = parameters_of<T>(args, args.gamma, row), *beta = parameters_of<T>(args, args.beta, row);
  const auto element = [&](int k) { return static_cast<uint32_t>(k * row_items + item) * kSize; };
  const TensorRows rows = tensor_rows<kWindows>(args, residual != nullptr, row);
  const bool is_padding = kWindows && rows.x == kNoRow;
  y += static_cast<size_t>(rows.y) * D;
  x += is_padding ? 0 : static_cast<size_t>(rows.x) * D;
  Pack<T> pack[kRowNormVectors] = {}, g[kRowNormVectors], b[kRowNormVectors] = {};
  UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
    if (element(k) < D && !is_padding) pack[k] = load_pack(x + element(k));
  }
  if (residual != nullptr) {
    residual += static_cast<size_t>(rows.residual) * D;
    Pack<T> add[kRowNormVectors];
    UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
      if (element(k) < D) add[k] = load_pack(residual + element(k));
    }
    UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
      if (element(k) >= D) continue;
      UNROLL for (int j = 0; j < kSize; ++j) {
        pack[k].v[j] = from_float<T>(to_float(pack[k].v[j]) + to_float(add[k].v[j]));
      }
      if (sum != nullptr && is_row) store_pack(sum + static_cast<size_t>(row) * D + element(k), pack[k]);
    }
  }
  // The parameters are loaded while the sums are computed.
  UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
    if (element(k) >= D) continue;
    g[k] = load_pack(gamma + element(k));
    if (beta != nullptr) b[k] = load_pack(beta + element(k));
  }

  float mean = 0;
  if (args.rms == 0) {
    // The pivot is the row's first element. Without it, a large mean would cost digits of the sum. A row of equal
    // values has a variance of exactly 0.
    float pivot = is_padding ? 0.0f : to_float(*x);
    if (residual != nullptr) pivot = to_float(from_float<T>(pivot + to_float(*global(residual))));
    float s = 0;
    UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
      if (element(k) >= D) continue;
      UNROLL for (int j = 0; j < kSize; ++j) s += to_float(pack[k].v[j]) - pivot;
    }
    mean = pivot + row_sum(s, lds.first, row_items) / static_cast<float>(D);
  }
  float s = 0;
  UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
    if (element(k) >= D) continue;
    UNROLL for (int j = 0; j < kSize; ++j) {
      const float d = to_float(pack[k].v[j]) - mean;
      s += d * d;
    }
  }
  const float scale = rsqrt_exact(row_sum(s, lds.second, row_items) / static_cast<float>(D) + args.epsilon);
  if (!is_row) return;
  if (item == 0) write_statistics(args, row, mean, scale);
  UNROLL for (int k = 0; k < kRowNormVectors; ++k) {
    if (element(k) >= D) continue;
    Pack<T> out = {};
    UNROLL for (int j = 0; j < kSize && !is_padding; ++j) {
      out.v[j] =
          from_float<T>((to_float(pack[k].v[j]) - mean) * scale * to_float(g[k].v[j]) + to_float(b[k].v[j]));
    }
    store_pack(y + element(k), out);
  }
}

template <class T, bool kWindows>
DEVICE void row_norm_any(const RowNormArgs& args) {
  SHARED(lds, RowNormLds);
  const T *x = args.x, *residual = args.residual;
  T *y = args.y, *sum = args.sum;
  const uint32_t D = args.D;
  const auto row = static_cast<uint32_t>(block_x()), first = static_cast<uint32_t>(thread_x());
  const T *gamma = parameters_of<T>(args, args.gamma, row), *beta = parameters_of<T>(args, args.beta, row);
  const TensorRows rows = tensor_rows<kWindows>(args, residual != nullptr, row);
  y += static_cast<size_t>(rows.y) * D;
  if (kWindows && rows.x == kNoRow) {
    for (uint32_t i = first; i < D; i += kRowNormAnyThreads) y[i] = from_float<T>(0.0f);
    return;
  }
  x += static_cast<size_t>(rows.x) * D;
  if (residual != nullptr) residual += static_cast<size_t>(rows.residual) * D;
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
  if (first == 0) write_statistics(args, row, mean, scale);
  for (uint32_t i = first; i < D; i += kRowNormAnyThreads) {
    const float v = value(i);
    float out = (v - mean) * scale * to_float(gamma[i]);
    if (beta != nullptr) out += to_float(beta[i]);
    if (sum != nullptr) sum[static_cast<size_t>(row) * D + i] = from_float<T>(v);
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
