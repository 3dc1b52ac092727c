// What ends a sum of FusedConv on CPUs: bias, residual and activation, and where the result goes, to numbers or to
// pairs of channels. For kernel files only (see device/cpu/isa.h).
#pragma once

#include <cstdint>
#include <limits>

#include "blocks/cpu/activation.h"
#include "operators/fused_conv/strips.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Where a result goes: to y, to pairs of channels in bfloat16, or to both; null where it does not.
template <class T>
struct Outputs {
  T* y;
  Word* pairs;
};

// What is added to it, as numbers or as pairs of channels; both null: nothing. And the slopes of what is below zero
// then, of all channels; null: there is no PRelu.
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

// What activations are that a product passes on its way out of the registers: a slope below zero, and bounds.
struct Bounds {
  bool enough;  // there is no more to it: nothing, Relu, LeakyRelu and Clip
  float slope = 1.0f;
  float least = -std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::infinity();

  explicit Bounds(const Activation& act) {
    const ActivationKind kind = act.kind;
    enough = kind == ActivationKind::kNone || kind == ActivationKind::kRelu ||
             kind == ActivationKind::kLeakyRelu || kind == ActivationKind::kClip;
    if (kind == ActivationKind::kLeakyRelu) slope = act.a;
    if (kind == ActivationKind::kRelu) least = 0.0f;
    if (kind == ActivationKind::kClip) {
      least = act.a;
      most = act.b;
    }
  }

  Vec operator()(Vec v) const {
    if (slope != 1.0f) v = v < Vec{} ? v * slope : v;
    return smaller(splat(most), larger(splat(least), v));  // NaN stays
  }
};

inline Words load_words(const Word* x, int64_t n) {
  return reinterpret_cast<Words>(load_range(reinterpret_cast<const float*>(x), 0, n));
}

// Vectors of a panel, into the first-level cache.
template <class T>
void fetch_panel(const T* x) {
  constexpr int64_t kBytes = kPanelWidth * static_cast<int64_t>(sizeof(T));
  const auto* from = reinterpret_cast<const char*>(x);
  for (int64_t k = 0; k < kBytes; k += 64) __builtin_prefetch(from + k);
  __builtin_prefetch(from + kBytes - 1);
}

// Some channels of an image from products: y = act(product + bias + residual). With kTwo the channels come two
// at a time, an even one first.
template <class T, bool kTwo = false>
struct Finish {
  static constexpr bool kPairs = kTwo;
  const ConvolutionProblem& p;
  const T* bias;  // of the first channel, as y
  Residual<T> residual;
  const T* slopes;
  T* y;
  Word* pairs;
  int64_t plane;
  const Pixels* pixels;  // of the vectors
  bool bounded;          // Bounds are enough
  float slope;           // of what is below zero
  float least, most;
  // Weights of the next product, which come into the caches while this one is computed; null: none.
  const Word* next = nullptr;
  int64_t next_rows = 0;

  Finish(const ConvolutionProblem& problem, const T* b, Residual<T> r, Outputs<T> to)
      : p(problem),
        bias(b),
        residual(r),
        slopes(r.slopes),
        y(to.y),
        pairs(to.pairs),
        plane(p.out_size()),
        pixels(nullptr) {
    const Bounds bounds(p.act);
    bounded = slopes == nullptr && bounds.enough;
    slope = bounds.slope;
    least = bounds.least;
    most = bounds.most;
  }

  // What ends the channels from m on, and an image's pixels from `from` on.
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

  Vec begin(int64_t) const { return Vec{}; }
  void step() {
    if (next == nullptr) return;
    __builtin_prefetch(next, 0, 2);
    next += next_rows;
  }

  // The residual of channel i, into the first-level cache while the product is computed.
  void fetch(int64_t i) const {
    if (residual.numbers != nullptr) return fetch_panel(residual.numbers + i * plane + pixels->at);
    if (residual.pairs != nullptr && i % 2 == 0) fetch_panel(residual.pairs + i / 2 * plane + pixels->at);
  }

  // Vector j of channel i. What is not bounded is left in o for `activate`.
  void operator()(int64_t i, int64_t j, Vec v, float* o) const {
    v = summed(i, j, v);
    if (!bounded) return store_aligned(o, v);
    put(i, j, within_bounds(v));
  }
  // The same of channels i and i + 1.
  void operator()(int64_t i, int64_t j, Vec low, Vec high, float* o, float* next_o) const {
    low = summed(i, j, low);
    high = summed(i + 1, j, high);
    if (residual.pairs != nullptr) {
      const Words words = load_words(residual.pairs + i / 2 * plane + pixels[j].at, pixels[j].count);
      low += first_of_pair(words);
      high += second_of_pair(words);
    }
    if (!bounded) {
      store_aligned(o, low);
      return store_aligned(next_o, high);
    }
    low = within_bounds(low);
    high = within_bounds(high);
    put_pair(i, j, low, high);
    if (y == nullptr) return;
    put(i, j, low);
    put(i + 1, j, high);
  }

  // Whether nothing but pairs is wanted, within bounds or, without a residual, of a slope: PairsAlone does that.
  bool gives_pairs_alone() const {
    return kTwo && bounded && y == nullptr && residual.numbers == nullptr &&
           (slope == 1.0f || residual.pairs == nullptr);
  }

  // The rest of it for o [rows][vectors L].
  void activate(int64_t rows, int64_t vectors, float* o) const {
    if (bounded) return;
    if (slopes == nullptr) activate_block(p.act, o, o, static_cast<size_t>(rows * vectors * L));
    for (int64_t i = 0; slopes != nullptr && i < rows; ++i) {
      const Activation of_channel = {ActivationKind::kLeakyRelu, static_cast<float>(slopes[i])};
      float* row = o + i * vectors * L;
      activate_block(of_channel, row, row, static_cast<size_t>(vectors * L));
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < vectors; ++j) {
        const float* at = o + (i * vectors + j) * L;
        if (kTwo && i % 2 == 0) put_pair(i, j, load_aligned(at), load_aligned(at + vectors * L));
        if (y != nullptr) put(i, j, load_aligned(at));
      }
    }
  }

 private:
  Vec summed(int64_t i, int64_t j, Vec v) const {
    const Pixels& here = pixels[j];
    v += splat(static_cast<float>(bias[i]));
    const T* r = residual.numbers;
    if (here.count == L) return r != nullptr ? v + load_as_float(r + i * plane + here.at) : v;
    v = chosen(v, here);
    return r != nullptr ? v + load_range(r + i * plane + here.at, 0, here.count) : v;
  }

  Vec within_bounds(Vec v) const {
    if (slope != 1.0f) v = v < Vec{} ? v * slope : v;
    return smaller(splat(most), larger(splat(least), v));  // NaN stays
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
    store_words(pairs + i / 2 * plane + pixels[j].at, Brain::join(low, high), pixels[j].count);
  }
};

// A Finish that gives pairs alone, within bounds or, with kSlope, of LeakyRelu. The bias is what sums begin with.
template <bool kResidual, bool kSlope = false>
struct PairsAlone {
  static constexpr bool kPairs = true;
  const float* bias;  // of the first channel, as the others
  const Word* residual;
  Word* pairs;
  int64_t plane;
  const Pixels* pixels;
  float slope, least, most;
  const Word* next = nullptr;
  int64_t next_rows = 0;

  explicit PairsAlone(const Finish<float, true>& of)
      : bias(of.bias),
        residual(of.residual.pairs),
        pairs(of.pairs),
        plane(of.plane),
        pixels(of.pixels),
        slope(of.slope),
        least(of.least),
        most(of.most) {}

  PairsAlone at(int64_t m, const Pixels* from) const {
    PairsAlone moved = *this;
    moved.bias += m;
    if (kResidual) moved.residual += m / 2 * plane;
    moved.pairs += m / 2 * plane;
    moved.pixels = from;
    return moved;
  }
  // Of channels i and i + 1, while the product is computed: the residual, and the lines that are written.
  void fetch(int64_t i) const {
    if (i % 2 != 0) return;
    const int64_t at = i / 2 * plane + pixels->at;
    if (kResidual) fetch_panel(residual + at);
    for (const int64_t k : {int64_t{0}, L, kPanelWidth - 1}) __builtin_prefetch(pairs + at + k, 1);
  }
  Vec begin(int64_t i) const { return splat(bias[i]); }
  void step() {
    if (next == nullptr) return;
    __builtin_prefetch(next, 0, 2);
    next += next_rows;
  }
  // Vector j of channels i and i + 1. Inlined always: what is left of a compiler's budget does not reach the filters.
  [[gnu::always_inline]] void operator()(int64_t i, int64_t j, Vec low, Vec high, float*, float*) const {
    const Pixels& here = pixels[j];
    const int64_t at = i / 2 * plane + here.at;
    if (kResidual) {
      if (here.count != L) {
        low = chosen(low, here);
        high = chosen(high, here);
      }
      const Words words = load_words(residual + at, here.count);
      low += first_of_pair(words);
      high += second_of_pair(words);
    }
    low = within_bounds(low);
    high = within_bounds(high);
    Words words = Brain::join(low, high);
    if (!kResidual) words = reinterpret_cast<Words>(chosen(reinterpret_cast<Vec>(words), here));
    store_words(pairs + at, words, here.count);
  }
  void activate(int64_t, int64_t, float*) const {}

  Vec within_bounds(Vec v) const {
    if constexpr (kSlope) return v < Vec{} ? v * slope : v;
    return smaller(splat(most), larger(splat(least), v));  // NaN stays
  }
};

// An image's part of what comes out.
template <class T>
Outputs<T> image_of(const ConvolutionProblem& p, Outputs<T> to, int64_t n) {
  const int64_t size = p.y_channels() * p.out_size();
  return {to.y == nullptr ? nullptr : to.y + n * size,
          to.pairs == nullptr ? nullptr : to.pairs + n * size / 2};
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
