#include <algorithm>

#include "blocks/half.h"
#include "cpu/microkernels/block.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/attention/rotary/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Reserves a float row of x, cos, sin and y for each worker thread, unless T is float.
template <class T>
float* take_rows(const FusedRotaryProblem& p, size_t workers, Workspace& workspace) {
  return workspace.take<float>(std::is_same_v<T, float> ? 0 : static_cast<int64_t>(workers) * 4 * p.D);
}

void rotate_halves(const float* x, const float* cos, const float* sin, float* y, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    y[i] = x[i] * cos[i] - x[half + i] * sin[i];
    y[half + i] = x[half + i] * cos[half + i] + x[i] * sin[half + i];
  }
}

void rotate_adjacent(const float* x, const float* cos, const float* sin, float* y, int64_t pairs) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    y[2 * i] = x[2 * i] * cos[2 * i] - x[2 * i + 1] * sin[2 * i];
    y[2 * i + 1] = x[2 * i + 1] * cos[2 * i + 1] + x[2 * i] * sin[2 * i + 1];
  }
}

}  // namespace

template <class T>
size_t fused_rotary_workspace(const FusedRotaryProblem& p, size_t workers) {
  Workspace workspace(nullptr);
  take_rows<T>(p, workers, workspace);
  return workspace.bytes();
}

template <class T>
void fused_rotary(const FusedRotaryProblem& p, const T* x, const T* cos, const T* sin, T* y,
                  Parallel& parallel, void* memory) {
  const int64_t D = p.D, rows = p.rows();
  if (rows * D == 0) return;
  Workspace workspace(memory);
  float* buffers = take_rows<T>(p, parallel.workers(), workspace);
  const int64_t rows_at_once = std::max<int64_t>(1, 8192 / D);
  parallel_for(parallel, (rows + rows_at_once - 1) / rows_at_once, [&](int64_t item, size_t worker) {
    const auto buffer = [&](int64_t which) {
      return std::is_same_v<T, float> ? nullptr : buffers + (static_cast<int64_t>(worker) * 4 + which) * D;
    };
    for (int64_t row = item * rows_at_once; row < std::min(rows, (item + 1) * rows_at_once); ++row) {
      const int64_t i2 = row % p.n[2], outer = row / p.n[2], i1 = outer % p.n[1], i0 = outer / p.n[1];
      const auto floats = [&](const T* data, const std::array<int64_t, 3>& strides, int64_t which) {
        const T* from = data + i0 * strides[0] + i1 * strides[1] + i2 * strides[2];
        return as_float(from, buffer(which), static_cast<size_t>(D));
      };
      const float *a = floats(x, p.x, 0), *c = floats(cos, p.cos, 1), *s = floats(sin, p.sin, 2);
      float* to = target(y + row * D, buffer(3));
      (p.interleaved ? rotate_adjacent : rotate_halves)(a, c, s, to, D / 2);
      store(y + row * D, to, static_cast<size_t>(D));
    }
  });
}

GRAPHOPT_INSTANTIATE(fused_rotary_workspace)
GRAPHOPT_INSTANTIATE(fused_rotary)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
