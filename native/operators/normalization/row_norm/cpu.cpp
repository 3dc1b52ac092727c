#include <algorithm>
#include <cmath>

#include "blocks/half.h"
#include "cpu/microkernels/block.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/normalization/row_norm/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

struct Buffers {
  float *gamma, *beta;  // converted to float; unused for float
  float* rows;          // three rows for each worker thread: s, x and r
  int64_t stride;       // floats per row
};

template <class T>
Buffers take_buffers(const RowNormProblem& p, size_t workers, Workspace& workspace) {
  constexpr bool kConverts = !std::is_same_v<T, float>;
  Buffers buffers;
  buffers.gamma = workspace.take<float>(kConverts ? p.images * p.D : 0);
  buffers.beta = workspace.take<float>(kConverts && !p.rms ? p.images * p.D : 0);
  buffers.stride = (p.D + 15) / 16 * 16;
  buffers.rows = workspace.take<float>(static_cast<int64_t>(workers) * 3 * buffers.stride);
  return buffers;
}

// Returns the sum of f(v) over n elements, computed in several independent vector accumulators.
template <class F>
float sum_over(const float* x, int64_t n, const F& f) {
  constexpr int64_t kChains = 4;
  Vec sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains * kWidth <= n; i += kChains * kWidth) {
    for (int64_t j = 0; j < kChains; ++j) sums[j] += f(load(x + i + j * kWidth));
  }
  for (; i < n; i += kWidth) sums[0] += keep_part(f(load_range(x + i, 0, n - i)), n - i, 0.0f);
  return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The rows of x, residual and y in a step of the loop; x is negative if its row is padding. In each of the
// next `more` steps, all three advance by one row.
struct Rows {
  int64_t x, residual, y, more;
};

Rows rows_at(const RowNormProblem& p, int64_t row) {
  const hip::RowWindows& w = p.windows;
  const auto divide = [](uint32_t n, const hip::Divisor& d) { return n / d.d; };
  const auto index = static_cast<uint32_t>(row);
  // A line of a window is also contiguous in the image, unless the image begins or ends within that line.
  const uint32_t width = w.window_width.d;
  if (!p.has_residual) {
    const uint32_t first = row_in_images(w, index, divide), more = width - index % width - 1;
    if (first == hip::kNoRow) return {-1, row, row, 0};
    return {first, row, row, row_in_images(w, index + more, divide) == first + more ? more : 0};
  }
  const uint32_t first = row_in_windows(w, index, divide),
                 more = std::min(width, w.width - index % w.width) - 1;
  const int64_t more_rows = row_in_windows(w, index + more, divide) == first + more ? more : 0;
  return p.order == RowOrder::kIntoWindows ? Rows{row, row, first, more_rows}
                                           : Rows{row, first, row, more_rows};
}

template <class T, bool kWindows>
void norm_rows(const RowNormProblem& p, const T* x, const T* residual, const T* gamma, const T* beta, T* y,
               T* sum, Parallel& parallel, void* memory) {
  if (p.rows == 0 || p.D == 0) return;
  const int64_t D = p.D;
  const auto count = static_cast<size_t>(D);
  Workspace workspace(memory);
  const Buffers buffers = take_buffers<T>(p, parallel.workers(), workspace);
  const size_t parameters = static_cast<size_t>(p.images) * count;
  const float* gammas = as_float(gamma, buffers.gamma, parameters);
  const float* betas = p.rms ? nullptr : as_float(beta, buffers.beta, parameters);
  const int64_t rows_of_image = p.rows / p.images;

  const int64_t rows_at_once = std::max<int64_t>(1, 8192 / D);
  parallel_for(parallel, (p.rows + rows_at_once - 1) / rows_at_once, [&](int64_t item, size_t worker) {
    float* s_buffer = buffers.rows + static_cast<int64_t>(worker) * 3 * buffers.stride;
    float* x_buffer = s_buffer + buffers.stride;
    float* r_buffer = x_buffer + buffers.stride;
    Rows at = {};
    for (int64_t row = item * rows_at_once; row < std::min(p.rows, (item + 1) * rows_at_once); ++row) {
      if (!kWindows) {
        at = {row, row, row, 0};
      } else if (at.more > 0) {
        at = {at.x + 1, at.residual + 1, at.y + 1, at.more - 1};
      } else {
        at = rows_at(p, row);
      }
      if (kWindows && at.x < 0) {
        std::fill_n(y + row * D, D, T(0.0f));
        continue;
      }
      const float* s = as_float(x + at.x * D, x_buffer, count);
      const int64_t image = p.images == 1 ? 0 : row / rows_of_image;
      const float* g = gammas + image * D;
      const float* b = p.rms ? nullptr : betas + image * D;
      if (p.has_residual) {
        const float* r = as_float(residual + at.residual * D, r_buffer, count);
        float* total = p.writes_sum ? target(sum + row * D, s_buffer) : s_buffer;
#pragma omp simd
        for (int64_t i = 0; i < D; ++i) total[i] = s[i] + r[i];
        if (p.writes_sum) store(sum + row * D, total, count);
        s = total;
      }
      // The sums of blocks are added in double, so that long rows lose no precision.
      double mean = 0;
      if (!p.rms) {
        // Without the pivot, a large mean would cost digits of the sum. A row of equal values has a variance of
        // exactly 0.
        const float pivot = s[0];
        for (int64_t i = 0; i < D; i += kBlock) {
          const int64_t end = std::min(D, i + kBlock);
          mean += static_cast<double>(sum_over(s + i, end - i, [&](Vec v) { return v - pivot; }));
        }
        mean = static_cast<double>(pivot) + mean / static_cast<double>(D);
      }
      const float m = static_cast<float>(mean);
      double squares = 0;
      for (int64_t i = 0; i < D; i += kBlock) {
        const int64_t end = std::min(D, i + kBlock);
        squares += static_cast<double>(sum_over(s + i, end - i, [&](Vec v) { return (v - m) * (v - m); }));
      }
      const float inverse = static_cast<float>(
          1.0 / std::sqrt(squares / static_cast<double>(D) + static_cast<double>(p.epsilon)));
      float* out = target(y + at.y * D, x_buffer);
      if (p.rms) {
#pragma omp simd
        for (int64_t i = 0; i < D; ++i) out[i] = s[i] * inverse * g[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < D; ++i) out[i] = (s[i] - m) * inverse * g[i] + b[i];
      }
      store(y + at.y * D, out, count);
    }
  });
}

}  // namespace

template <class T>
size_t row_norm_workspace(const RowNormProblem& p, size_t workers) {
  Workspace workspace(nullptr);
  take_buffers<T>(p, workers, workspace);
  return workspace.bytes();
}

template <class T>
void row_norm(const RowNormProblem& p, const T* x, const T* residual, const T* gamma, const T* beta, T* y,
              T* sum, Parallel& parallel, void* memory) {
  const auto run = p.order == RowOrder::kImages ? norm_rows<T, false> : norm_rows<T, true>;
  run(p, x, residual, gamma, beta, y, sum, parallel, memory);
}

GRAPHOPT_INSTANTIATE(row_norm_workspace)
GRAPHOPT_INSTANTIATE(row_norm)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
