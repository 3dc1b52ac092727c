// The epilogue of FusedConv on CPUs: bias, residual and activation, and the store in NCHW or NCHW2c (finish_cpu.cpp).
// For kernel files only (see cpu/isa.h).
#pragma once

#include <cstdint>

#include "cpu/microkernels/activation.h"
#include "operators/conv/fused_conv/strips.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// The destinations of a result: y, `pairs` in the NCHW2c bf16 layout, or both; null if not requested.
template <class T>
struct Outputs {
  T* y;
  Word* pairs;
};

// The residual in NCHW (`numbers`) or NCHW2c (`pairs`), both null without one, and the PRelu slopes of all channels,
// null without PRelu.
template <class T>
struct Residual {
  const T* numbers;
  const Word* pairs;
  const T* slopes;

  Residual(const ConvolutionProblem& p, const void* r, const T* each = nullptr)
      : numbers(p.has_residual && !p.residual_pairs ? static_cast<const T*>(r) : nullptr),
        pairs(p.has_residual && p.residual_pairs ? static_cast<const Word*>(r) : nullptr),
        slopes(each) {}

  Residual of_image(const ConvolutionProblem& p, int64_t n) const {
    return from(n * p.y_channels() * p.out_size(), n * p.y_channels() / 2 * p.out_size());
  }
  Residual from(int64_t number, int64_t word) const {
    Residual moved = *this;
    if (numbers != nullptr) moved.numbers += number;
    if (pairs != nullptr) moved.pairs += word;
    return moved;
  }
};

inline Words load_words(const Word* x, int64_t n) {
  return reinterpret_cast<Words>(load_range(reinterpret_cast<const float*>(x), 0, n));
}

// The epilogue of some channels of an image: y = act(sum + bias + residual). With kTwo, channels are finished two at a
// time, the even one first.
template <class T, bool kTwo = false>
struct Finish {
  static constexpr bool kPairs = kTwo;
  const ConvolutionProblem& p;
  const T* bias;  // begins with the first channel, like y
  Residual<T> residual;
  const T* slopes;
  T* y;
  Word* pairs;
  int64_t plane;
  const Pixels* pixels;  // for each vector
  Bounds bounds;
  bool bounded;  // `bounds` is the entire activation
  // Only `pairs` is requested, `bounds` is the entire activation, and the residual is not NCHW. The sums may then begin
  // with the bias.
  bool pairs_alone;

  Finish(const ConvolutionProblem& problem, const T* b, Residual<T> r, Outputs<T> to)
      : p(problem),
        bias(b),
        residual(r),
        slopes(r.slopes),
        y(to.y),
        pairs(to.pairs),
        plane(p.out_size()),
        pixels(nullptr),
        bounds(p.act),
        bounded(slopes == nullptr && bounds.enough),
        pairs_alone(kTwo && bounded && y == nullptr && residual.numbers == nullptr) {}

  // Returns the epilogue for the channels from m on and an image's pixels from `from` on.
  Finish at(int64_t m, const Pixels* from) const {
    Finish moved = *this;
    moved.bias += m;
    if (slopes != nullptr) moved.slopes += m;
    moved.residual = residual.from(m * plane, m / 2 * plane);
    if (y != nullptr) moved.y += m * plane;
    if (pairs != nullptr) moved.pairs += m / 2 * plane;
    moved.pixels = from;
    return moved;
  }

  // The initial value of each channel's sums.
  const float* initial_sums() const {
    if constexpr (kTwo) {
      if (pairs_alone) return bias;
    }
    return StoreSums::kZeros;
  }

  // Whether register tiles store y directly.
  bool stores_numbers() const { return bounded && y != nullptr; }

  // Prefetches the residuals of `channels` channels into the first-level cache, and the cache lines of `pairs` that
  // will be written.
  void fetch(int64_t channels) const;

  // Finishes vector j of channel i. Unless `bounded`, stores its sum to o, from which `activate` completes it.
  void operator()(int64_t i, int64_t j, Vec v, float* o) const {
    v = summed(i, j, v);
    if (!bounded) return store_aligned(o, v);
    put(i, j, bounds(v));
  }

  // Computes y from the sums o [channels][vectors L] and stores it; `begun`: the sums began with initial_sums(), not
  // with zeros.
  void end(int64_t channels, int64_t vectors, float* o, bool begun) const;
  // The same from the sums o [pixels][vectors L] of a block of pixels. These sums began with zeros.
  void end_block(int64_t channels, int64_t vectors, const float* o) const;
  // Completes the epilogue after a register tile, which has stored full vectors to y or to o [channels][kPanelWidth].
  // If `parts`, it has stored partial vectors to the same place, else only their sums to o.
  void end_panel(int64_t channels, float* o, bool parts) const {
    if (pairs_alone) return;
    const bool whole = parts || (pixels[0].count == L && pixels[1].count == L);
    if (!whole || !stores_numbers() || pairs != nullptr) end_rest(channels, o, parts);
  }
  // Completes the epilogue for o [channels][vectors L].
  void activate(int64_t channels, int64_t vectors, float* o) const;

 private:
  // Finishes vector j of channels i and i + 1.
  void end_two(int64_t i, int64_t j, Vec low, Vec high, float* o, float* next_o) const;
  void end_pairs_alone(int64_t channels, int64_t vectors, const float* o, bool begun) const;
  void end_rest(int64_t channels, float* o, bool parts) const;
  void store_activated(int64_t channels, int64_t vectors, float* o) const;
  void end_block_of_pairs(int64_t channels, int64_t vectors, const float* o) const;

  Vec summed(int64_t i, int64_t j, Vec v) const {
    const Pixels& here = pixels[j];
    v += splat(static_cast<float>(bias[i]));
    const T* r = residual.numbers;
    if (here.count == L) return r != nullptr ? v + load_as_float(r + i * plane + here.at) : v;
    v = chosen(v, here);
    return r != nullptr ? v + load_range(r + i * plane + here.at, 0, here.count) : v;
  }

  void put(int64_t i, int64_t j, Vec v) const {
    const Pixels& here = pixels[j];
    if (here.count == L) {
      store(y + i * plane + here.at, v);
    } else {
      store_part(y + i * plane + here.at, v, here.count, false);
    }
  }

  void put_pair(int64_t i, int64_t j, Vec low, Vec high) const {
    if (pairs == nullptr) return;
    store_words(pairs + i / 2 * plane + pixels[j].at, Bfloat16Pairs::join(low, high), pixels[j].count);
  }
};

// Stores only `pairs`, from sums that include the bias. Clamps them or, with kSlope, applies LeakyRelu.
template <bool kResidual, bool kSlope = false>
struct PairsAlone {
  const Word* residual;  // begins with the first channel, like `pairs`
  Word* pairs;
  int64_t plane;
  const Pixels* pixels;
  Bounds bounds;

  static bool stores(const Finish<float, true>& of) {
    return of.pairs_alone && (of.bounds.slope != 1.0f) == kSlope &&
           (of.residual.pairs != nullptr) == kResidual;
  }
  explicit PairsAlone(const Finish<float, true>& of)
      : residual(of.residual.pairs), pairs(of.pairs), plane(of.plane), pixels(of.pixels), bounds(of.bounds) {}

  // Stores vector j of channels i and i + 1. Always inlined, because the compiler's inlining budget does not suffice
  // for the filters.
  [[gnu::always_inline]] void operator()(int64_t i, int64_t j, Vec low, Vec high) const {
    const Pixels& here = pixels[j];
    const int64_t at = i / 2 * plane + here.at;
    if constexpr (kResidual) {
      low = chosen(low, here);
      high = chosen(high, here);
      const Words words = load_words(residual + at, here.count);
      low += first_of_pair(words);
      high += second_of_pair(words);
    }
    Words words = Bfloat16Pairs::join(within_bounds(low), within_bounds(high));
    if constexpr (!kResidual) words = reinterpret_cast<Words>(chosen(reinterpret_cast<Vec>(words), here));
    store_words(pairs + at, words, here.count);
  }
  [[gnu::always_inline]] Vec within_bounds(Vec v) const {
    return kSlope ? bounds.sloped(v) : bounds.clamp(v);
  }
};

// The outputs of image n.
template <class T>
Outputs<T> image_of(const ConvolutionProblem& p, Outputs<T> to, int64_t n) {
  const int64_t size = p.y_channels() * p.out_size();
  return {to.y == nullptr ? nullptr : to.y + n * size,
          to.pairs == nullptr ? nullptr : to.pairs + n * size / 2};
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
