// First the largest of the rows that a window covers, column by column, then the largest of the columns: a row of
// y takes as many comparisons as the window is high, and as it is wide.
#include <limits>

#include "blocks/cpu/product.h"
#include "blocks/cpu/workspace.h"
#include "device/cpu/parallel_for.h"
#include "operators/pool_pairs/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

constexpr int64_t L = kWidth;
constexpr float kLeast = -std::numeric_limits<float>::infinity();

// Columns of a row with its padding, and what vectors read beyond it.
int64_t row_slot(const PoolPairsProblem& p) {
  const int64_t read = round_up(p.out[1], L) * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] + L;
  return round_up(std::max(read, p.pad[1] + p.in[1]) + L, L);
}

struct EvenLanes {
  static constexpr int at(int i) { return 2 * i; }
};

// x[i stride] for i in [0, L).
Vec load_every(const float* x, int64_t stride) {
  if (stride == 1) return load(x);
  if (stride == 2) return shuffle(load(x), load(x + L), EvenLanes());
  alignas(64) float part[L];
  for (int64_t i = 0; i < L; ++i) part[i] = x[i * stride];
  return load_aligned(part);
}

// The largest of each column of rows `first` to `last` of x, each `step` apart: of the first channel and of the
// second.
void largest_of_rows(const uint32_t* x, int64_t width, int64_t first, int64_t last, int64_t step, float* low,
                     float* high) {
  for (int64_t w = 0; w < width; w += L) {
    const int64_t n = std::min(width - w, L);
    Vec a = splat(kLeast), b = a;
    for (int64_t h = first; h < last; h += step) {
      const auto words =
          reinterpret_cast<Words>(load_range(reinterpret_cast<const float*>(x + h * width + w), 0, n));
      a = larger(reinterpret_cast<Vec>(words << 16), a);
      b = larger(reinterpret_cast<Vec>(words & (Words{} + 0xffff0000u)), b);
    }
    store(low + w, n == L ? a : keep_part(a, n, kLeast));
    store(high + w, n == L ? b : keep_part(b, n, kLeast));
  }
}

}  // namespace

template <class T>
size_t pool_pairs_workspace(const PoolPairsProblem& p, size_t lanes) {
  return lanes * 2 * static_cast<size_t>(row_slot(p)) * sizeof(float);
}

template <class T>
void pool_pairs(const PoolPairsProblem& p, const T* x, T* y, Parallel& parallel, void* workspace) {
  const int64_t slot = row_slot(p);
  parallel_for(parallel, p.planes, [&](int64_t plane, size_t lane) {
    float* low = static_cast<float*>(workspace) + 2 * static_cast<int64_t>(lane) * slot;
    float* high = low + slot;
    std::fill_n(low, 2 * slot, kLeast);
    const T* image = x + plane * p.in[0] * p.in[1];
    T* to = y + plane * p.out[0] * p.out[1];
    for (int64_t h = 0; h < p.out[0]; ++h, to += p.out[1]) {
      const int64_t top = h * p.stride[0] - p.pad[0], step = p.dilation[0];
      const int64_t first = top < 0 ? top + ceil_div(-top, step) * step : top;
      const int64_t last = std::min(p.in[0], top + (p.kernel[0] - 1) * step + 1);
      largest_of_rows(image, p.in[1], first, last, step, low + p.pad[1], high + p.pad[1]);
      for (int64_t w = 0; w < p.out[1]; w += L) {
        Vec a = splat(kLeast), b = a;
        for (int64_t k = 0; k < p.kernel[1]; ++k) {
          const int64_t at = w * p.stride[1] + k * p.dilation[1];
          a = larger(load_every(low + at, p.stride[1]), a);
          b = larger(load_every(high + at, p.stride[1]), b);
        }
        // They are numbers of bfloat16: the lower half of each is zero.
        const Words words = (reinterpret_cast<Words>(a) >> 16) | reinterpret_cast<Words>(b);
        store_part(reinterpret_cast<float*>(to + w), reinterpret_cast<Vec>(words), std::min(p.out[1] - w, L),
                   false);
      }
    }
  });
}

template size_t pool_pairs_workspace<uint32_t>(const PoolPairsProblem&, size_t);
template void pool_pairs(const PoolPairsProblem&, const uint32_t*, uint32_t*, Parallel&, void*);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
