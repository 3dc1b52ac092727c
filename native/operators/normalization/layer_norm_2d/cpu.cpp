#include <algorithm>
#include <cmath>

#include "blocks/half.h"
#include "cpu/microkernels/block.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/normalization/layer_norm_2d/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

constexpr int64_t kMaxPixels = 512;
constexpr int64_t kMinPixels = 32;
constexpr int64_t kBlockFloats = 32 * 1024;  // floats per block of pixels: fits into the second-level cache
constexpr int64_t kChannels = 32;            // channels per partial sum

// Returns the number of pixels that are normalized at a time.
int64_t block_of(const LayerNorm2dProblem& p) {
  const int64_t pixels =
      std::clamp(kBlockFloats / std::max<int64_t>(p.C, 1), kMinPixels, kMaxPixels) / 16 * 16;
  return std::min(pixels, p.pixels);
}

struct Buffers {
  float *gamma, *beta;  // converted to float; unused for float
  float* block;         // for each worker thread: X converted to float
  int64_t block_floats;
};

template <class T>
Buffers take_buffers(const LayerNorm2dProblem& p, size_t workers, Workspace& workspace) {
  constexpr bool kConverts = !std::is_same_v<T, float>;
  Buffers buffers;
  buffers.gamma = workspace.take<float>(kConverts ? p.C : 0);
  buffers.beta = workspace.take<float>(kConverts ? p.C : 0);
  buffers.block_floats = kConverts ? p.C * block_of(p) : 0;
  buffers.block = workspace.take<float>(static_cast<int64_t>(workers) * buffers.block_floats);
  return buffers;
}

// sum[i] = the sum over channels of term(row of X, i), for n pixels.
template <class Term>
void sum_channels(const float* x, int64_t stride, int64_t C, int64_t n, float* sum, const Term& term) {
  float part[kMaxPixels];
  std::fill_n(sum, n, 0.0f);
  for (int64_t first = 0; first < C; first += kChannels) {
    std::fill_n(part, n, 0.0f);
    for (int64_t c = first; c < std::min(C, first + kChannels); ++c) {
      const float* row = x + c * stride;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) part[i] += term(row, i);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] += part[i];
  }
}

}  // namespace

template <class T>
size_t layer_norm_2d_workspace(const LayerNorm2dProblem& p, size_t workers) {
  Workspace workspace(nullptr);
  take_buffers<T>(p, workers, workspace);
  return workspace.bytes();
}

template <class T>
void layer_norm_2d(const LayerNorm2dProblem& p, const T* x, const T* gamma, const T* beta, T* y,
                   Parallel& parallel, void* memory) {
  constexpr bool kConverts = !std::is_same_v<T, float>;
  if (p.N * p.C * p.pixels == 0) return;
  Workspace workspace(memory);
  const Buffers buffers = take_buffers<T>(p, parallel.workers(), workspace);
  const float* g = as_float(gamma, buffers.gamma, static_cast<size_t>(p.C));
  const float* b = as_float(beta, buffers.beta, static_cast<size_t>(p.C));
  const int64_t block = block_of(p), blocks = (p.pixels + block - 1) / block;

  parallel_for(parallel, p.N * blocks, [&](int64_t item, size_t worker) {
    const int64_t image = item / blocks, first = item % blocks * block;
    const int64_t n = std::min(block, p.pixels - first);
    const int64_t at = image * p.C * p.pixels + first;
    const float* s = nullptr;
    int64_t stride = p.pixels;
    if constexpr (kConverts) {
      float* copy = buffers.block + static_cast<int64_t>(worker) * buffers.block_floats;
      for (int64_t c = 0; c < p.C; ++c) to_float(x + at + c * p.pixels, copy + c * n, static_cast<size_t>(n));
      s = copy;
      stride = n;
    } else {
      s = x + at;
    }
    // The pivot is the first channel. Without it, a large mean would cost digits of the sum. Equal values have a
    // variance of exactly 0.
    float pivot[kMaxPixels], mean[kMaxPixels], inverse[kMaxPixels];
    std::copy_n(s, n, pivot);
    const float share = 1.0f / static_cast<float>(p.C);
    sum_channels(s, stride, p.C, n, mean, [&](const float* row, int64_t i) { return row[i] - pivot[i]; });
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) mean[i] = pivot[i] + mean[i] * share;
    sum_channels(s, stride, p.C, n, inverse,
                 [&](const float* row, int64_t i) { return (row[i] - mean[i]) * (row[i] - mean[i]); });
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) inverse[i] = 1.0f / std::sqrt(inverse[i] * share + p.epsilon);
    for (int64_t c = 0; c < p.C; ++c) {
      const float* row = s + c * stride;
      float buffer[kMaxPixels];
      T* to = y + at + c * p.pixels;
      float* out = target(to, buffer);
      const float scale = g[c], shift = b[c];
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = (row[i] - mean[i]) * inverse[i] * scale + shift;
      store(to, out, static_cast<size_t>(n));
    }
  });
}

GRAPHOPT_INSTANTIATE(layer_norm_2d_workspace)
GRAPHOPT_INSTANTIATE(layer_norm_2d)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
