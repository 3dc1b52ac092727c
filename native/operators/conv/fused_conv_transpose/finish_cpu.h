// The epilogue of a transposed convolution, and the interleaving of its phases in rows of y. For kernel files only (see
// cpu/isa.h).
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/microkernels/block.h"
#include "cpu/parallel_for.h"
#include "operators/conv/fused_conv/finish.h"
#include "operators/conv/fused_conv_transpose/phases_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Stores the first n < L elements, with one store of 8, 4, 2 or 1 elements for each bit that is set in n.
inline void store_few(float* to, Vec v, int64_t n) {
  alignas(64) float elements[L];
  store_aligned(elements, v);
  int64_t at = 0;
  const auto put = [&](auto count) {
    if constexpr (count() < L) {
      if ((n & count()) == 0) return;
      std::memcpy(to + at, elements + at, count() * sizeof(float));
      at += count();
    }
  };
  put(std::integral_constant<int64_t, 8>());
  put(std::integral_constant<int64_t, 4>());
  put(std::integral_constant<int64_t, 2>());
  put(std::integral_constant<int64_t, 1>());
}
inline void store_few(half* to, Vec v, int64_t n) { store_part(to, v, n, false); }

// y = act(sums + bias + residual) of a channel of an image.
template <class T>
struct ChannelEpilogue {
  Activation act;
  Bounds bounds;
  Vec bias;
  const T* residual;
  T* y;

  // Computes n elements of y from `at` on. `buffer` has room for n floats and one vector.
  void finish(int64_t at, const float* sums, int64_t n, float* buffer) const {
    T* to = y + at;
    if (!bounds.is_complete) {
      for (int64_t i = 0; i < n; i += L) store(buffer + i, summed(sums + i, at + i, n - i));
      float* result = target(to, buffer);
      activate_block(act, buffer, result, static_cast<size_t>(n));
      return store(to, result, static_cast<size_t>(n));
    }
    int64_t i = 0;
    for (; i + L <= n; i += L) put(at + i, load(sums + i));
    if (i < n) store_few(to + i, bounds(summed(sums + i, at + i, n - i)), n - i);
  }

  // Computes and stores a full vector of y. Requires bounds.is_complete: `bounds` is the entire activation.
  void put(int64_t at, Vec v) const {
    v += bias;
    if (residual != nullptr) v += load_as_float(residual + at);
    store(y + at, bounds(v));
  }

 private:
  Vec summed(const float* sums, int64_t at, int64_t n) const {
    const Vec v = load(sums) + bias;
    return residual == nullptr ? v : v + load_range(residual + at, 0, n);
  }
};

// The epilogue of all channels of an image.
template <class T>
struct ImageEpilogue {
  const ConvolutionProblem& p;
  const T *bias, *residual, *slopes;
  T* y;

  ImageEpilogue(const ConvolutionProblem& problem, const T* b, const T* r, const T* channel_slopes, T* to,
                int64_t n)
      : p(problem), bias(b), residual(r), slopes(channel_slopes), y(to) {
    const int64_t image = n * p.y_channels() * p.out_size();
    y += image;
    if (residual != nullptr) residual += image;
  }

  ChannelEpilogue<T> of(int64_t channel) const {
    const int64_t first = channel * p.out_size();
    Bounds bounds(p.act);
    if (slopes != nullptr) bounds.slope = static_cast<float>(slopes[channel]);
    return {p.act, bounds, splat(static_cast<float>(bias[channel])),
            residual == nullptr ? nullptr : residual + first, y + first};
  }
};

// Interleaves n elements of `even` and `odd`. Reads and writes entire vectors: n is rounded up to a multiple of L.
inline void interleave(const float* even, const float* odd, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += L) {
    const Vec a = load(even + i), b = load(odd + i);
    store(to + 2 * i, shuffle(a, b, Interleaved<0>()));
    store(to + 2 * i + L, shuffle(a, b, Interleaved<L / 2>()));
  }
}

// The memory of one worker thread.
struct TransposeScratch {
  float *sums, *interleaved, *shuffled;
};

// Returns the sums of a row's phases, interleaved pixel by pixel, for `width` pixels. `distance`: stride of the phases.
inline const float* interleave_phases(const PhaseRow& row, const float* sums, int64_t distance, int64_t width,
                                      const TransposeScratch& scratch) {
  const auto n = static_cast<int64_t>(row.phases.size());
  const auto phase = [&](int64_t i) { return sums + row.phases[static_cast<size_t>(i)] * distance; };
  if (n == 1) return phase(0);
  if ((n & (n - 1)) != 0) {
    for (int64_t i = 0; i < n; ++i) {
      const float* from = phase(i);
      for (int64_t j = 0; j < width; ++j) scratch.interleaved[j * n + i] = from[j];
    }
    return scratch.interleaved;
  }
  // Each pass interleaves the first and the second half of the sequences: a perfect shuffle.
  float *from = scratch.interleaved, *to = scratch.shuffled;
  for (int64_t i = 0; i < n / 2; ++i) interleave(phase(i), phase(i + n / 2), width, from + 2 * i * width);
  for (int64_t pass = 2; pass < n; pass *= 2) {
    interleave(from, from + n / 2 * width, n / 2 * width, to);
    std::swap(from, to);
  }
  return from;
}

// Sets all elements of y to the result for sums of zero. The caller overwrites the elements that have taps.
template <class T>
void finish_without_sums(const ConvolutionProblem& p, const ImageEpilogue<T>& epilogue, Parallel& parallel) {
  parallel_for(parallel, p.y_channels(), [&](int64_t channel, size_t) {
    alignas(64) const float sums[kBlock + L] = {};
    alignas(64) float buffer[kBlock + L];
    const ChannelEpilogue<T> finished = epilogue.of(channel);
    for (int64_t at = 0; at < p.out_size(); at += kBlock) {
      finished.finish(at, sums, std::min(kBlock, p.out_size() - at), buffer);
    }
  });
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
