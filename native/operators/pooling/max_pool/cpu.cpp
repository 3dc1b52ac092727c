// For each row of y, first computes the maximum of each column of x over the rows of the window, then the maximum over
// the columns of each window. For a window of KH x KW, this takes KH comparisons for each column of x and KW for each
// element of y, instead of KH * KW for each element.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "cpu/microkernels/gemm.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/pooling/max_pool/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Returns the size of the buffer for the maxima of a row, in elements. It includes the padding and the columns that
// vector loads read beyond the row.
int64_t row_slot(const MaxPoolProblem& p) {
  const int64_t read = round_up(p.out[1], L) * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] + L;
  return round_up(std::max(read, p.pad[1] + p.in[1]) + L, L);
}

// Returns x[i * stride] for i in [0, L).
Vec load_every(const float* x, int64_t stride) {
  if (stride == 1) return load(x);
  if (stride == 2) return shuffle(load(x), load(x + L), EveryOther<0>());
  alignas(64) float part[L];
  for (int64_t i = 0; i < L; ++i) part[i] = x[i * stride];
  return load_aligned(part);
}

// The number of channels in an element of type T: two bfloat16 channels in a uint32_t (NCHW2c), else one.
// load_channels and store_channels convert between elements and one vector for each channel.
template <class T>
constexpr int64_t kChannels = std::is_same_v<T, uint32_t> ? 2 : 1;
template <class T>
void load_channels(const T* x, int64_t n, Vec* channels) {
  channels[0] = load_range(x, 0, n);
}
void load_channels(const uint32_t* x, int64_t n, Vec* channels) {
  const auto words = reinterpret_cast<Words>(load_range(reinterpret_cast<const float*>(x), 0, n));
  channels[0] = first_of_pair(words);
  channels[1] = second_of_pair(words);
}
template <class T>
void store_channels(T* y, const Vec* channels, int64_t n) {
  store_part(y, channels[0], n, false);
}
void store_channels(uint32_t* y, const Vec* channels, int64_t n) {
  // These are bfloat16 values: the lower half of each is zero.
  const Words words = (reinterpret_cast<Words>(channels[0]) >> 16) | reinterpret_cast<Words>(channels[1]);
  store_part(reinterpret_cast<float*>(y), reinterpret_cast<Vec>(words), n, false);
}

// Computes the maximum of each column over rows [first, last) of x with stride `step`. Writes the maxima of channel c
// to rows + c slot.
template <class T>
void compute_column_maxima(const T* x, int64_t width, int64_t first, int64_t last, int64_t step, float* rows,
                           int64_t slot) {
  constexpr int64_t kCount = kChannels<T>;
  for (int64_t w = 0; w < width; w += L) {
    const int64_t n = std::min(width - w, L);
    Vec maximum[kCount], loaded[kCount];
    for (Vec& m : maximum) m = splat(kLowest);
    for (int64_t h = first; h < last; h += step) {
      load_channels(x + h * width + w, n, loaded);
      for (int64_t c = 0; c < kCount; ++c) maximum[c] = larger(loaded[c], maximum[c]);
    }
    for (int64_t c = 0; c < kCount; ++c) {
      store(rows + c * slot + w, n == L ? maximum[c] : keep_part(maximum[c], n, kLowest));
    }
  }
}

// Returns true if each element of a row of y depends on two adjacent columns of x, without padding.
bool halves_columns(const MaxPoolProblem& p) {
  return p.kernel[1] == 2 && p.stride[1] == 2 && p.dilation[1] == 1 && p.pad[1] == 0 &&
         2 * p.out[1] <= p.in[1];
}

// Computes a row of y from rows [first, last) of x with stride `step`. Requires halves_columns().
template <class T>
void halved_row(const MaxPoolProblem& p, const T* x, int64_t first, int64_t last, int64_t step, T* y) {
  constexpr int64_t kCount = kChannels<T>;
  for (int64_t w = 0; w < p.out[1]; w += L) {
    const int64_t n = p.in[1] - 2 * w;
    Vec low[kCount], high[kCount], loaded[kCount];
    for (int64_t c = 0; c < kCount; ++c) low[c] = high[c] = splat(kLowest);
    for (int64_t h = first; h < last; h += step) {
      const T* row = x + h * p.in[1] + 2 * w;
      load_channels(row, n, loaded);
      for (int64_t c = 0; c < kCount; ++c) low[c] = larger(loaded[c], low[c]);
      load_channels(row + L, n - L, loaded);
      for (int64_t c = 0; c < kCount; ++c) high[c] = larger(loaded[c], high[c]);
    }
    for (int64_t c = 0; c < kCount; ++c) {
      low[c] = larger(shuffle(low[c], high[c], EveryOther<0>()), shuffle(low[c], high[c], EveryOther<1>()));
    }
    store_channels(y + w, low, std::min(p.out[1] - w, L));
  }
}

}  // namespace

template <class T>
size_t max_pool_workspace(const MaxPoolProblem& p, size_t workers) {
  return workers * static_cast<size_t>(kChannels<T> * row_slot(p)) * sizeof(float);
}

template <class T>
void max_pool(const MaxPoolProblem& p, const T* x, T* y, Parallel& parallel, void* workspace) {
  constexpr int64_t kCount = kChannels<T>;
  const int64_t slot = row_slot(p);
  const bool halves = halves_columns(p);
  parallel_for(parallel, p.planes, [&](int64_t plane, size_t worker) {
    float* rows = static_cast<float*>(workspace) + static_cast<int64_t>(worker) * kCount * slot;
    std::fill_n(rows, kCount * slot, kLowest);
    const T* image = x + plane * p.in[0] * p.in[1];
    T* to = y + plane * p.out[0] * p.out[1];
    for (int64_t h = 0; h < p.out[0]; ++h, to += p.out[1]) {
      const int64_t top = h * p.stride[0] - p.pad[0], step = p.dilation[0];
      const int64_t first = top < 0 ? top + ceil_div(-top, step) * step : top;
      const int64_t last = std::min(p.in[0], top + (p.kernel[0] - 1) * step + 1);
      if (halves) {
        halved_row(p, image, first, last, step, to);
        continue;
      }
      compute_column_maxima(image, p.in[1], first, last, step, rows + p.pad[1], slot);
      for (int64_t w = 0; w < p.out[1]; w += L) {
        Vec maximum[kCount];
        for (Vec& m : maximum) m = splat(kLowest);
        for (int64_t k = 0; k < p.kernel[1]; ++k) {
          const int64_t at = w * p.stride[1] + k * p.dilation[1];
          for (int64_t c = 0; c < kCount; ++c) {
            maximum[c] = larger(load_every(rows + c * slot + at, p.stride[1]), maximum[c]);
          }
        }
        store_channels(to + w, maximum, std::min(p.out[1] - w, L));
      }
    }
  });
}

GRAPHOPT_INSTANTIATE(max_pool_workspace)
template decltype(max_pool_workspace<uint32_t>) max_pool_workspace<uint32_t>;
GRAPHOPT_INSTANTIATE(max_pool)
template decltype(max_pool<uint32_t>) max_pool<uint32_t>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
