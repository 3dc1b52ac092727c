// Computes y from FusedConv's sums in memory: bias, residual, activation, and the store in NCHW or NCHW2c.
#include "operators/conv/fused_conv/finish.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Prefetches the vectors of a panel into the first-level cache.
template <class T>
void fetch_panel(const T* x) {
  constexpr int64_t kBytes = kPanelWidth * static_cast<int64_t>(sizeof(T));
  const auto* from = reinterpret_cast<const char*>(x);
  for (int64_t k = 0; k < kBytes; k += 64) __builtin_prefetch(from + k);
  __builtin_prefetch(from + kBytes - 1);
}

}  // namespace

template <class T, bool kTwoChannels>
void Finish<T, kTwoChannels>::fetch(int64_t channels) const {
  const int64_t at = pixels->at;
  for (int64_t i = 0; residual.nchw != nullptr && i < channels; ++i) {
    fetch_panel(residual.nchw + i * plane + at);
  }
  for (int64_t i = 0; residual.nchw2c != nullptr && i < channels; i += 2) {
    fetch_panel(residual.nchw2c + i / 2 * plane + at);
  }
  for (int64_t i = 0; nchw2c_only && i < channels; i += 2) {
    for (const int64_t k : {int64_t{0}, L, kPanelWidth - 1}) {
      __builtin_prefetch(nchw2c + i / 2 * plane + at + k, 1);
    }
  }
}

template <class T, bool kTwoChannels>
void Finish<T, kTwoChannels>::finish_two(int64_t i, int64_t j, Vec low, Vec high, float* o,
                                         float* next_o) const {
  low = summed(i, j, low);
  high = summed(i + 1, j, high);
  if (residual.nchw2c != nullptr) {
    const Words words = load_words(residual.nchw2c + i / 2 * plane + pixels[j].at, pixels[j].count);
    low += first_of_pair(words);
    high += second_of_pair(words);
  }
  if (!bounded) {
    store_aligned(o, low);
    return store_aligned(next_o, high);
  }
  low = bounds(low);
  high = bounds(high);
  store_nchw2c(i, j, low, high);
  if (y == nullptr) return;
  put(i, j, low);
  put(i + 1, j, high);
}

template <class T, bool kTwoChannels>
void Finish<T, kTwoChannels>::finish_nchw2c_only(int64_t channels, int64_t vectors, const float* o,
                                                 bool has_bias) const {
  const int64_t row = vectors * L;
  for (int64_t i = 0; i < channels; i += 2, o += 2 * row) {
    const Vec bias_low = splat(static_cast<float>(bias[i])),
              bias_high = splat(static_cast<float>(bias[i + 1]));
    for (int64_t j = 0; j < vectors; ++j) {
      const Pixels& here = pixels[j];
      const int64_t at = i / 2 * plane + here.at;
      Vec low = load_aligned(o + j * L), high = load_aligned(o + row + j * L);
      if (!has_bias) {
        low += bias_low;
        high += bias_high;
      }
      low = compressed(low, here);
      high = compressed(high, here);
      if (residual.nchw2c != nullptr) {
        const Words words = load_words(residual.nchw2c + at, here.count);
        low += first_of_pair(words);
        high += second_of_pair(words);
      }
      store_words(nchw2c + at, Bfloat16Pairs::make_words(bounds(low), bounds(high)), here.count);
    }
  }
}

template <class T, bool kTwoChannels>
void Finish<T, kTwoChannels>::finish_sums(int64_t channels, int64_t vectors, float* o, bool has_bias) const {
  if (nchw2c_only) return finish_nchw2c_only(channels, vectors, o, has_bias);
  const int64_t row = vectors * L;
  for (int64_t i = 0; i < channels; i += kTwoChannels ? 2 : 1) {
    for (int64_t j = 0; j < vectors; ++j) {
      float* at = o + i * row + j * L;
      if constexpr (kTwoChannels) {
        finish_two(i, j, load_aligned(at), load_aligned(at + row), at, at + row);
      } else {
        (*this)(i, j, load_aligned(at), at);
      }
    }
  }
  activate(channels, vectors, o);
}

template <class T, bool kTwoChannels>
void Finish<T, kTwoChannels>::finish_block(int64_t channels, int64_t vectors, const float* o) const {
  if (nchw2c_only) return finish_nchw2c_block(channels, vectors, o);
  alignas(64) float by_channel[L * L];
  for (int64_t j = 0; j < vectors; ++j) {
    transpose(o + j * L, vectors * L, by_channel, L);
    at(j * L, pixels).finish_sums(std::min(L, channels - j * L), 1, by_channel, false);
  }
}

// Packs adjacent channels to words before the transposition, which halves the number of transposed elements.
template <class T, bool kTwoChannels>
void Finish<T, kTwoChannels>::finish_nchw2c_block(int64_t channels, int64_t vectors, const float* o) const {
  const bool adds = residual.nchw2c != nullptr;
  alignas(64) Word by_pixel[L * L] = {}, by_pair[L * L], added[L * L];
  const int64_t count = pixels->count, at = pixels->at, words_of_pixel = channels / 2;
  const auto floats = [](Word* words) { return reinterpret_cast<float*>(words); };
  if (adds) {
    for (int64_t i = 0; i < L; ++i) {
      const Words words = i < words_of_pixel ? load_words(residual.nchw2c + i * plane + at, count) : Words{};
      *reinterpret_cast<AlignedWords*>(by_pair + i * L) = words;
    }
    transpose(floats(by_pair), L, floats(added), L);
  }
  const Vec bias_low = load_range(bias, 0, channels), bias_high = load_range(bias + L, 0, channels - L);
  for (int64_t i = 0; i < count; ++i) {
    const float* sums = o + i * vectors * L;
    const Vec low = load_aligned(sums) + bias_low,
              high = vectors > 1 ? load_aligned(sums + L) + bias_high : Vec{};
    Words words;
    if (adds) {
      const Words r = *reinterpret_cast<const AlignedWords*>(added + i * L);
      const Vec even = shuffle(low, high, EveryOther<0>()) + first_of_pair(r);
      const Vec odd = shuffle(low, high, EveryOther<1>()) + second_of_pair(r);
      words = Bfloat16Pairs::make_words(bounds(even), bounds(odd));
    } else {
      words = pack_adjacent(bounds(low), bounds(high));
    }
    *reinterpret_cast<AlignedWords*>(by_pixel + i * L) = words;
  }
  transpose(floats(by_pixel), L, floats(by_pair), L);
  for (int64_t i = 0; i < words_of_pixel; ++i) {
    store_words(nchw2c + i * plane + at, *reinterpret_cast<const AlignedWords*>(by_pair + i * L), count);
  }
}

template <class T, bool kTwoChannels>
void Finish<T, kTwoChannels>::finish_rest(int64_t channels, float* o, bool parts) const {
  const bool direct = stores_nchw();
  for (int64_t j = 0; j < kPanel; ++j) {
    const Pixels& here = pixels[j];
    const bool left = !parts && here.count != L;
    for (int64_t i = 0; left && i < channels; ++i) {
      float* at = o + i * kPanelWidth + j * L;
      Vec v = summed(i, j, load_aligned(at));
      if (residual.nchw2c != nullptr) {
        const Words words = load_words(residual.nchw2c + i / 2 * plane + here.at, here.count);
        v += i % 2 == 0 ? first_of_pair(words) : second_of_pair(words);
      }
      direct ? put(i, j, bounds(v)) : store_aligned(at, v);
    }
    for (int64_t i = 0; direct && nchw2c != nullptr && i < channels; i += 2) {
      const T *low = y + i * plane + here.at, *high = low + plane;
      store_nchw2c(i, j, load_range(low, 0, here.count), load_range(high, 0, here.count));
    }
  }
  if (!direct) store_activated(channels, kPanel, o);
}

template <class T, bool kTwoChannels>
void Finish<T, kTwoChannels>::activate(int64_t channels, int64_t vectors, float* o) const {
  if (!bounded) store_activated(channels, vectors, o);
}

template <class T, bool kTwoChannels>
void Finish<T, kTwoChannels>::store_activated(int64_t channels, int64_t vectors, float* o) const {
  const int64_t row = vectors * L;
  if (slopes == nullptr) activate_block(p.act, o, o, static_cast<size_t>(channels * row));
  for (int64_t i = 0; slopes != nullptr && i < channels; ++i) {
    const Activation of_channel = {ActivationKind::kLeakyRelu, static_cast<float>(slopes[i])};
    activate_block(of_channel, o + i * row, o + i * row, static_cast<size_t>(row));
  }
  for (int64_t i = 0; i < channels; ++i) {
    for (int64_t j = 0; j < vectors; ++j) {
      const float* at = o + i * row + j * L;
      if (kTwoChannels && i % 2 == 0) store_nchw2c(i, j, load_aligned(at), load_aligned(at + row));
      if (y != nullptr) put(i, j, load_aligned(at));
    }
  }
}

template struct Finish<float>;
template struct Finish<half>;
template struct Finish<float, true>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
