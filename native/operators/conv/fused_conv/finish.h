// The epilogue of FusedConv on CPUs: bias, residual and activation, and the store in NCHW or NCHW2c (finish_cpu.cpp).
// For kernel files only (see cpu/isa.h).
#pragma once

#include <cstdint>

#include "cpu/microkernels/activation.h"
#include "operators/conv/fused_conv/strips.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// The destinations of a result: y in NCHW, `nchw2c` in the NCHW2c bf16 layout, or both; null if not requested.
template <class T>
struct Outputs {
  T* y;
  Word* nchw2c;
};

// The residual in one of two layouts, NCHW or NCHW2c, and the PRelu slopes of all channels. Null if unused.
template <class T>
struct Residual {
  const T* nchw;
  const Word* nchw2c;
  const T* slopes;

  Residual(const ConvolutionProblem& p, const void* r, const T* each = nullptr)
      : nchw(p.has_residual && !p.residual_nchw2c ? static_cast<const T*>(r) : nullptr),
        nchw2c(p.has_residual && p.residual_nchw2c ? static_cast<const Word*>(r) : nullptr),
        slopes(each) {}

  Residual of_image(const ConvolutionProblem& p, int64_t n) const {
    return from(n * p.y_channels() * p.out_size(), n * p.y_channels() / 2 * p.out_size());
  }
  Residual from(int64_t element, int64_t word) const {
    Residual moved = *this;
    if (nchw != nullptr) moved.nchw += element;
    if (nchw2c != nullptr) moved.nchw2c += word;
    return moved;
  }
};

// Returns sums of integers, converted to float32, times a factor.
inline Vec scaled(Vec sums, float factor) {
  return __builtin_convertvector(reinterpret_cast<IntVec>(sums), Vec) * factor;
}

inline Words load_words(const Word* x, int64_t n) {
  return reinterpret_cast<Words>(load_range(reinterpret_cast<const float*>(x), 0, n));
}

// The epilogue of some channels of an image: y = act(sum + bias + residual). If there are factors, the sums are
// integers, and are multiplied by the channel's factor. With kTwoChannels, it processes channels
// 2 i and 2 i + 1 together, as NCHW2c requires.
template <class T, bool kTwoChannels = false>
struct Finish {
  static constexpr bool kPairs = kTwoChannels;
  const ConvolutionProblem& p;
  const T* bias;  // from the epilogue's first channel on, like y
  Residual<T> residual;
  const T* slopes;
  const float* factors;  // null for sums in float32
  T* y;
  Word* nchw2c;
  int64_t plane;         // elements of a channel of y
  const Pixels* pixels;  // for each vector
  Bounds bounds;
  bool bounded;  // `bounds` is the entire activation
  // Whether only NCHW2c is requested, `bounds` is the entire activation, and the residual is not NCHW. The sums may
  // then begin with the bias.
  bool nchw2c_only;

  Finish(const ConvolutionProblem& problem, const T* b, Residual<T> r, Outputs<T> to,
         const float* f = nullptr)
      : p(problem),
        bias(b),
        residual(r),
        slopes(r.slopes),
        factors(f),
        y(to.y),
        nchw2c(to.nchw2c),
        plane(p.out_size()),
        pixels(nullptr),
        bounds(p.act),
        bounded(slopes == nullptr && bounds.is_complete),
        nchw2c_only(kTwoChannels && bounded && y == nullptr && residual.nchw == nullptr) {}

  // Returns the epilogue for image n.
  Finish of_image(int64_t n) const {
    Finish moved = *this;
    moved.residual = residual.of_image(p, n);
    const int64_t size = p.y_channels() * plane;
    if (y != nullptr) moved.y += n * size;
    if (nchw2c != nullptr) moved.nchw2c += n * size / 2;
    return moved;
  }

  // Returns the epilogue for the channels from m on and an image's pixels from `from` on.
  Finish at(int64_t m, const Pixels* from) const {
    Finish moved = *this;
    moved.bias += m;
    if (slopes != nullptr) moved.slopes += m;
    if (factors != nullptr) moved.factors += m;
    moved.residual = residual.from(m * plane, m / 2 * plane);
    if (y != nullptr) moved.y += m * plane;
    if (nchw2c != nullptr) moved.nchw2c += m / 2 * plane;
    moved.pixels = from;
    return moved;
  }

  // The initial value of each channel's sums.
  const float* initial_sums() const {
    if constexpr (kTwoChannels) {
      if (nchw2c_only) return bias;
    }
    return StoreSums::kZeros;
  }

  // Whether register tiles store y directly.
  bool stores_nchw() const { return bounded && y != nullptr; }

  // Prefetches the residuals of `channels` channels into the first-level cache, and the cache lines of `nchw2c` that
  // will be written.
  void fetch(int64_t channels) const;

  // Applies the epilogue to vector j of channel i and stores it. Unless `bounded`, stores the vector to o without
  // activation; activate() completes it.
  void operator()(int64_t i, int64_t j, Vec v, float* o) const {
    v = summed(i, j, v);
    if (!bounded) return store_aligned(o, v);
    put(i, j, bounds(v));
  }

  // Computes y from the sums o [channels][vectors L] and stores it. `has_bias`: the sums began with initial_sums(), not
  // with zeros.
  void finish_sums(int64_t channels, int64_t vectors, float* o, bool has_bias) const;
  // The same from the sums o [pixels][vectors L] of a block of pixels. These sums began with zeros.
  void finish_block(int64_t channels, int64_t vectors, const float* o) const;
  // Completes the epilogue after a register tile, which has stored full vectors to y or to o [channels][kPanelWidth].
  // `parts`: the tile has stored partial vectors there, too; otherwise it has stored the sums of partial vectors to o.
  void finish_panel(int64_t channels, float* o, bool parts) const {
    if (nchw2c_only) return;
    const bool whole = parts || (pixels[0].count == L && pixels[1].count == L);
    if (!whole || !stores_nchw() || nchw2c != nullptr) finish_rest(channels, o, parts);
  }
  // Unless `bounded`, applies the activation to o [channels][vectors L] and stores the result.
  void activate(int64_t channels, int64_t vectors, float* o) const;

 private:
  // Applies the epilogue to vector j of channels i and i + 1.
  void finish_two(int64_t i, int64_t j, Vec low, Vec high, float* o, float* next_o) const;
  void finish_nchw2c_only(int64_t channels, int64_t vectors, const float* o, bool has_bias) const;
  void finish_rest(int64_t channels, float* o, bool parts) const;
  void store_activated(int64_t channels, int64_t vectors, float* o) const;
  void finish_nchw2c_block(int64_t channels, int64_t vectors, const float* o) const;

  Vec summed(int64_t i, int64_t j, Vec v) const {
    const Pixels& here = pixels[j];
    if (factors != nullptr) v = scaled(v, factors[i]);
    v += splat(static_cast<float>(bias[i]));
    const T* r = residual.nchw;
    if (here.count == L) return r != nullptr ? v + load_as_float(r + i * plane + here.at) : v;
    v = compressed(v, here);
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

  void store_nchw2c(int64_t i, int64_t j, Vec low, Vec high) const {
    if (nchw2c == nullptr) return;
    store_words(nchw2c + i / 2 * plane + pixels[j].at, Bfloat16Pairs::make_words(low, high), pixels[j].count);
  }
};

// Stores only NCHW2c, from sums that include the bias. Clamps them or, with kSlope, applies LeakyRelu.
template <bool kResidual, bool kSlope = false>
struct StoreNchw2c {
  const Word* residual;  // from the epilogue's first channel on, like `nchw2c`
  Word* nchw2c;
  int64_t plane;
  const Pixels* pixels;
  Bounds bounds;

  static bool stores(const Finish<float, true>& of) {
    return of.nchw2c_only && (of.bounds.slope != 1.0f) == kSlope &&
           (of.residual.nchw2c != nullptr) == kResidual;
  }
  explicit StoreNchw2c(const Finish<float, true>& of)
      : residual(of.residual.nchw2c),
        nchw2c(of.nchw2c),
        plane(of.plane),
        pixels(of.pixels),
        bounds(of.bounds) {}

  // Stores vector j of channels i and i + 1. Always inlined: the compiler's inlining budget is too small for the
  // depthwise kernels.
  [[gnu::always_inline]] void operator()(int64_t i, int64_t j, Vec low, Vec high) const {
    const Pixels& here = pixels[j];
    const int64_t at = i / 2 * plane + here.at;
    if constexpr (kResidual) {
      low = compressed(low, here);
      high = compressed(high, here);
      const Words words = load_words(residual + at, here.count);
      low += first_of_pair(words);
      high += second_of_pair(words);
    }
    Words words = Bfloat16Pairs::make_words(within_bounds(low), within_bounds(high));
    if constexpr (!kResidual) words = reinterpret_cast<Words>(compressed(reinterpret_cast<Vec>(words), here));
    store_words(nchw2c + at, words, here.count);
  }
  [[gnu::always_inline]] Vec within_bounds(Vec v) const {
    return kSlope ? bounds.apply_slope(v) : bounds.clamp(v);
  }
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
