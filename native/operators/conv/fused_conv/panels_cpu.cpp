// Register tiles of FusedConv. For full vectors of an NCHW result, and for results in NCHW2c only, they apply the
// epilogue while the sums are in registers. In the other, less frequent cases Finish applies the epilogue to sums in
// memory (finish_cpu.cpp).
#include <type_traits>

#include "operators/conv/fused_conv/panels.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// The layout of the residual.
enum class Added { kNothing, kNchw, kNchw2c };

// Adds bias and residual, and stores vectors to y or to a buffer for Finish. Without masked stores, partial vectors
// would take many instructions. Their sums are then stored to the buffer without bias and residual.
template <class E, class T, class To, Added kAdded>
struct StoreNchw : StoreSums {
  static constexpr bool kParts = kWidth >= 8 && std::is_same_v<T, float>;
  const float *bias, *factors;  // begin with the first channel, like the pointers below
  const T* residual;
  const Word* residual_nchw2c;
  To* to;
  int64_t plane, row;  // strides between channels of the residual and of `to`
  const Pixels* pixels;
  int64_t to_at[kPanel];
  Bounds bounds;

  template <bool kTwoChannels>
  StoreNchw(const StoreSums& each, const Finish<T, kTwoChannels>& of, const float* biases, float* o)
      : StoreSums(each),
        bias(biases),
        factors(of.factors),
        residual(of.residual.nchw),
        residual_nchw2c(of.residual.nchw2c),
        plane(of.plane),
        pixels(of.pixels) {
    const bool direct = of.stores_nchw();
    if constexpr (std::is_same_v<T, To>) to = of.y;
    if constexpr (std::is_same_v<To, float>) {
      if (!direct) to = o;
    }
    row = direct ? plane : kPanelWidth;
    if (direct) bounds = of.bounds;
    for (int64_t j = 0; j < kPanel; ++j) to_at[j] = direct ? pixels[j].at : j * L;
  }

  template <int kRows>
  [[gnu::always_inline]] void end(const Vec (&sum)[kRows][kPanel], float* o) const {
    constexpr int kChannels = kAdded == Added::kNchw2c ? 2 : 1;
#pragma GCC unroll 2
    for (int j = 0; j < kPanel; ++j) {
      const bool whole = pixels[j].count == L;
      if (whole && bounds.slope == 1.0f) {
#pragma GCC unroll 14
        for (int i = 0; i + kChannels <= kRows; i += kChannels) put<true, false>(i, j, sum);
      } else if (whole) {
#pragma GCC unroll 14
        for (int i = 0; i + kChannels <= kRows; i += kChannels) put<true, true>(i, j, sum);
      } else {
#pragma GCC unroll 14
        for (int i = 0; i + kChannels <= kRows; i += kChannels) {
          if constexpr (kParts) {
            put<false, true>(i, j, sum);
          } else {
            for (int k = i; k < i + kChannels; ++k) store_aligned(o + (k * kPanel + j) * L, sum[k][j]);
          }
        }
      }
    }
  }

 private:
  // Stores vector j of channel i or, with a residual in NCHW2c, of channels i and i + 1.
  template <bool kWhole, bool kSlope, int kRows>
  [[gnu::always_inline]] void put(int i, int j, const Vec (&sum)[kRows][kPanel]) const {
    const Pixels& here = pixels[j];
    const auto with_bias = [&](int channel) {
      Vec v = sum[channel][j];
      if constexpr (E::kIntegers) v = scaled(v, factors[channel]);
      return (kWhole ? v : compressed(v, here)) + splat(bias[channel]);
    };
    Vec v = with_bias(i);
    if constexpr (kAdded == Added::kNchw) {
      const T* r = residual + i * plane + here.at;
      v += kWhole ? load_as_float(r) : load_range(r, 0, here.count);
    }
    if constexpr (kAdded == Added::kNchw2c) {
      const Word* r = residual_nchw2c + i / 2 * plane + here.at;
      const Words words = kWhole ? *reinterpret_cast<const UnalignedWords*>(r) : load_words(r, here.count);
      put<kWhole, kSlope>(i + 1, j, with_bias(i + 1) + second_of_pair(words));
      v += first_of_pair(words);
    }
    put<kWhole, kSlope>(i, j, v);
  }
  template <bool kWhole, bool kSlope>
  [[gnu::always_inline]] void put(int i, int j, Vec v) const {
    v = kSlope && bounds.slope != 1.0f ? bounds.apply_slope(v) : bounds.clamp(v);
    To* at = to + i * row + to_at[j];
    kWhole ? store(at, v) : store_part(at, v, pixels[j].count, false);
  }
};

// Stores the result in NCHW2c only. The initial sums are the bias.
template <bool kResidual, bool kSlope>
struct StoreNchw2cOnly : StoreSums {
  static constexpr bool kParts = true;
  StoreNchw2c<kResidual, kSlope> store;

  StoreNchw2cOnly(const StoreSums& each, const Finish<float, true>& of, const float*, float*)
      : StoreSums(each), store(of) {}

  template <int kRows>
  [[gnu::always_inline]] void end(const Vec (&sum)[kRows][kPanel], float*) const {
#pragma GCC unroll 7
    for (int i = 0; i + 2 <= kRows; i += 2) {
#pragma GCC unroll 2
      for (int j = 0; j < kPanel; ++j) store(i, j, sum[i][j], sum[i + 1][j]);
    }
  }
};

template <class E, class F, class Store>
struct MultiplyPanels {
  template <int kRows>
  struct Of {
    static_assert(!F::kPairs || kRows % 2 == 0);
    static void run(const Panels& panels, const Word* w, const Word* s, const Steps& steps, StoreSums each,
                    const float* bias, F finish) {
      alignas(64) float o[kRows * kPanelWidth];
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        const int64_t j = panel * kPanel;
        finish.pixels = panels.pixels + j;
        finish.fetch(kRows);
        const Table table = {steps.until((j + kPanel) * L)};
        if (j + kPanel <= panels.vectors) {
          multiply<E, kRows, kPanel>(w, s + j * L, table, steps.count, o, Store(each, finish, bias, o));
          finish.finish_panel(kRows, o, Store::kParts);
        } else {
          multiply_rows<E>(kRows, 1, w, s + j * L, table, steps.count, o, each);
          finish.finish_sums(kRows, 1, o, true);
        }
        each = {each.begins};
      }
    }
  };
  // If the epilogue processes two channels together, blocks have an even number of rows.
  template <int kRows>
  using Picked = Of<F::kPairs ? kRows + kRows % 2 : kRows>;
};

}  // namespace

template <class E, class F>
void multiply_panels(int64_t rows, const Panels& panels, const Word* w, const Word* s, const Steps& steps,
                     const StoreSums& each, const F& finish) {
  using T = std::decay_t<decltype(*finish.bias)>;
  float bias[kMaxRows];
  for (int64_t i = 0; i < rows; ++i) bias[i] = static_cast<float>(finish.bias[i]);
  const auto multiply_and = [&](auto* store) {
    using Store = std::remove_pointer_t<decltype(store)>;
    of_rows<MultiplyPanels<E, F, Store>::template Picked>(rows)(panels, w, s, steps, each, bias, finish);
  };
  const auto store_nchw = [&](auto* to) {
    using To = std::remove_pointer_t<decltype(to)>;
    if constexpr (F::kPairs) {
      if (finish.residual.nchw2c != nullptr) {
        return multiply_and(static_cast<StoreNchw<E, T, To, Added::kNchw2c>*>(nullptr));
      }
    }
    if (finish.residual.nchw == nullptr) {
      return multiply_and(static_cast<StoreNchw<E, T, To, Added::kNothing>*>(nullptr));
    }
    multiply_and(static_cast<StoreNchw<E, T, To, Added::kNchw>*>(nullptr));
  };
  if constexpr (F::kPairs) {
    const auto store_nchw2c_only = [&](auto slope) {
      constexpr bool kSlope = decltype(slope)::value;
      finish.residual.nchw2c != nullptr ? multiply_and(static_cast<StoreNchw2cOnly<true, kSlope>*>(nullptr))
                                        : multiply_and(static_cast<StoreNchw2cOnly<false, kSlope>*>(nullptr));
    };
    if (finish.nchw2c_only) {
      return finish.bounds.slope != 1.0f ? store_nchw2c_only(std::true_type{})
                                         : store_nchw2c_only(std::false_type{});
    }
  }
  if constexpr (std::is_same_v<T, half>) {
    if (finish.stores_nchw()) return store_nchw(static_cast<half*>(nullptr));
  }
  store_nchw(static_cast<float*>(nullptr));
}

template decltype(multiply_panels<Float32, Finish<float>>) multiply_panels<Float32, Finish<float>>;
template decltype(multiply_panels<Float32, Finish<half>>) multiply_panels<Float32, Finish<half>>;
template decltype(multiply_panels<Bfloat16Pairs, Finish<float>>)
    multiply_panels<Bfloat16Pairs, Finish<float>>;
template decltype(multiply_panels<ShortPairs, Finish<float>>) multiply_panels<ShortPairs, Finish<float>>;
template decltype(multiply_panels<Bfloat16Pairs, Finish<float, true>>)
    multiply_panels<Bfloat16Pairs, Finish<float, true>>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
