// An implicit product. x is packed strip by strip, with its padding, as pairs of channels (in bfloat16) or
// single ones, sorted by the remainders of their places modulo the stride, so that neighbouring pixels of y
// read neighbouring words:
//
//   s [group][pair of channels][phase][depth][row][column]
//
// Each step of the product (a pair of channels, a tap of the window) finds the words of its pixels at an
// offset. The pixels of y lie in s as in y but for the columns and rows that the window needs beyond them:
// vectors run over these too, and what they gave is left out when a vector is stored. Output channels are the
// rows of the product, so that y is written as it is computed. Where y has few pixels, vectors of them would
// be partly empty: there the pixels are the rows, whose words are gathered first, and the channels the
// vectors. A group with one input channel is no product: each of its output channels is a sum over the window
// of one plane.
#include "operators/fused_conv/cpu.h"

#include <array>
#include <limits>
#include <vector>

#include "blocks/cpu/activation.h"
#include "blocks/cpu/product.h"
#include "blocks/cpu/workspace.h"
#include "device/cpu/parallel_for.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

constexpr int64_t L = kWidth;
constexpr int64_t kStripBytes = 256 << 10;  // of s for each lane: a part of a second-level cache
constexpr int64_t kGroupBytes = 256 << 10;  // weights that pass a strip together
constexpr int64_t kPlaneBytes = 16 << 10;   // of s for a single plane: half a first-level cache
constexpr int64_t kPlaneVectors = 4;        // of one plane, summed together
// Half a second-level cache: panels of weights pass beside them.
constexpr int64_t kGatheredBytes = 512 << 10;
constexpr double kFull = 0.9;  // of vectors of pixels: below, vectors of channels are better

// Axes along which neighbouring elements of x make neighbouring elements of y are one.
ConvolutionProblem with_joined_axes(ConvolutionProblem p) {
  const auto plain = [&](size_t axis) {
    return p.kernel[axis] == 1 && p.stride[axis] == 1 && p.in[axis] == p.out[axis] && p.pad[axis] == 0;
  };
  for (size_t axis = 1; axis < 3; ++axis) {
    if (!plain(axis - 1) || !plain(axis)) continue;
    for (auto* sizes : {&p.in, &p.out}) {
      (*sizes)[axis] *= (*sizes)[axis - 1];
      (*sizes)[axis - 1] = 1;
    }
  }
  return p;
}

// A part of y along its first axis with more than one element, and what of x it reads.
struct Strip {
  ConvolutionProblem::Axes out, first;    // sizes of the part of y, and where it begins
  ConvolutionProblem::Axes phases, size;  // of s
  int64_t plane, words;                   // of a phase, of a pair of channels

  Strip(const ConvolutionProblem& p, size_t axis, int64_t begin, int64_t end) {
    plane = words = 1;
    for (size_t i = 0; i < 3; ++i) {
      out[i] = i == axis ? end - begin : p.out[i];
      first[i] = i == axis ? begin : 0;
      phases[i] = 0;
      int64_t most = 0;
      for (int64_t k = 0; k < p.kernel[i]; ++k) {
        phases[i] = std::max(phases[i], k * p.dilation[i] % p.stride[i] + 1);
        most = std::max(most, k * p.dilation[i] / p.stride[i]);
      }
      size[i] = out[i] + most;
      plane *= size[i];
      words *= phases[i];
    }
    // An odd number of vectors: the words of one pixel are spread over all sets of the cache.
    words = (round_up(words * plane, L) | L);
  }

  // Pixels, in the order of s, from the first to the last one of y.
  int64_t span() const { return ((out[0] - 1) * size[1] + out[1] - 1) * size[2] + out[2]; }
  // Where the words of the tap (d, h, w) begin.
  int64_t offset(const ConvolutionProblem& p, const ConvolutionProblem::Axes& tap) const {
    int64_t phase = 0, place = 0;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t at = tap[i] * p.dilation[i];
      phase = phase * phases[i] + at % p.stride[i];
      place = place * size[i] + at / p.stride[i];
    }
    return phase * plane + place;
  }
};

// How y is cut into strips: as much of it at a time as has its s in the caches.
struct Strips {
  size_t axis;   // the first one with more than one element
  int64_t most;  // elements of it

  // Strips take at most `bytes`, of which each element has `depth` words, and have at least `least` elements.
  Strips(const ConvolutionProblem& p, int64_t bytes, int64_t depth, int64_t least) : axis(0) {
    while (axis < 2 && p.out[axis] == 1) ++axis;
    most = p.out[axis];
    const auto taken = [&](int64_t n) { return depth * Strip(p, axis, 0, n).words * 4; };
    const int64_t whole = taken(most), one = taken(1);
    if (whole <= bytes) return;
    const int64_t more = std::max<int64_t>((whole - one) / std::max<int64_t>(most - 1, 1), 1);
    most = std::min(most, std::max((bytes - one) / more, least));
    // Equal ones, of whole vectors.
    most = ceil_div(p.out[axis], ceil_div(p.out[axis], most));
    if (axis == 2) most = std::min(round_up(most, L), p.out[axis]);
  }
  Strip at(const ConvolutionProblem& p, int64_t begin) const {
    return Strip(p, axis, begin, std::min(p.out[axis], begin + most));
  }
};

// A last channel without another one is multiplied by two taps of a row at a time: its words hold neighbouring
// columns of the window.
template <class E>
bool pairs_columns(const ConvolutionProblem& p) {
  return E::kDepth > 1 && p.C % 2 != 0 && p.kernel[2] > 1;
}

// The taps along a row of the window that a pair of channels has words for. Of an odd number of columns the last
// two words overlap, and the second counts one column: the next one is none of the window's, and infinite
// perhaps.
template <class E>
std::vector<int64_t> columns_of(const ConvolutionProblem& p, bool last) {
  std::vector<int64_t> columns;
  const bool two = last && pairs_columns<E>(p);
  for (int64_t w = 0; w < p.kernel[2]; w += two ? 2 : 1) {
    columns.push_back(two ? std::min(w, p.kernel[2] - 2) : w);
  }
  return columns;
}

template <class E>
int64_t pairs_of(const ConvolutionProblem& p) {
  return ceil_div(p.C, E::kDepth);
}

template <class E>
int64_t steps_of(const ConvolutionProblem& p) {
  const auto last = static_cast<int64_t>(columns_of<E>(p, true).size());
  return ((pairs_of<E>(p) - 1) * p.kernel[2] + last) * p.kernel[0] * p.kernel[1];
}

// For each step of the product.
template <class E>
std::vector<int64_t> step_offsets(const ConvolutionProblem& p, const Strip& strip) {
  std::vector<int64_t> offsets;
  offsets.reserve(static_cast<size_t>(steps_of<E>(p)));
  const int64_t pairs = pairs_of<E>(p);
  std::vector<int64_t> taps;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (pair == 0 || pair + 1 == pairs) {
      const std::vector<int64_t> columns = columns_of<E>(p, pair + 1 == pairs);
      taps.clear();
      for (int64_t d = 0; d < p.kernel[0]; ++d) {
        for (int64_t h = 0; h < p.kernel[1]; ++h) {
          for (const int64_t w : columns) taps.push_back(strip.offset(p, {d, h, w}));
        }
      }
    }
    for (const int64_t tap : taps) offsets.push_back(pair * strip.words + tap);
  }
  return offsets;
}

// The pixels of a vector that are y's.
struct Pixels {
  uint32_t lanes;  // one bit each
  int32_t count;
  int64_t at;  // of the first one in a plane of y
};

// The pixels of a strip, in vectors of which the first `width` lanes are used.
std::vector<Pixels> pixels_of(const ConvolutionProblem& p, const Strip& strip, int64_t width) {
  std::vector<Pixels> pixels(static_cast<size_t>(ceil_div(strip.span(), width)));
  const int64_t first = (strip.first[0] * p.out[1] + strip.first[1]) * p.out[2] + strip.first[2];
  int64_t at = first, d = 0, h = 0, w = 0;
  for (Pixels& vector : pixels) {
    vector = {0, 0, at};
    for (int64_t lane = 0; lane < width;) {
      const int64_t run = std::min(width - lane, strip.size[2] - w);
      const bool inside = h < strip.out[1] && d < strip.out[0];
      const int64_t count = inside ? std::clamp<int64_t>(strip.out[2] - w, 0, run) : 0;
      vector.lanes |= ((1u << count) - 1) << lane;
      vector.count += static_cast<int32_t>(count);
      lane += run;
      w += run;
      if (w == strip.size[2]) {
        w = 0;
        if (++h == strip.size[1]) {
          h = 0;
          ++d;
        }
      }
    }
    at += vector.count;
  }
  return pixels;
}

// The lanes of v whose bits are set, in order.
Vec chosen(Vec v, const Pixels& pixels) {
  if (pixels.count == L) return v;
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_compress_ps(static_cast<__mmask16>(pixels.lanes), (__m512)v);
#else
  Vec result = {};
  int count = 0;
  for (int lane = 0; lane < L; ++lane) {
    if ((pixels.lanes >> lane & 1) != 0) result[count++] = v[lane];
  }
  return result;
#endif
}

// --- Packing

template <int kStep>
struct EveryOther {
  static constexpr int at(int i) { return 2 * i + kStep; }
};

// x[i stride] for i in [0, L) where lo <= i stride < hi, 0 elsewhere.
template <class T>
Vec load_strided(const T* x, int64_t stride, int64_t lo, int64_t hi) {
  if (stride == 1) return load_range(x, lo, hi);
  if (stride == 2) {
    return shuffle(load_range(x, lo, hi), load_range(x + L, lo - L, hi - L), EveryOther<0>());
  }
  alignas(64) float part[L];
  for (int64_t i = 0; i < L; ++i) {
    part[i] = i * stride >= lo && i * stride < hi ? static_cast<float>(x[i * stride]) : 0.0f;
  }
  return load_aligned(part);
}

void store_words(Word* to, Words words, int64_t n) {
  if (n >= L) {
    *reinterpret_cast<UnalignedWords*>(to) = words;
    return;
  }
#if defined(__AVX512F__)
  _mm512_mask_storeu_epi32(to, static_cast<__mmask16>((1u << n) - 1), (__m512i)words);
#else
  for (int64_t i = 0; i < n; ++i) to[i] = words[i];
#endif
}

// Where the second number of a word is, beside the first: elsewhere in x, and columns further in its row.
struct Second {
  bool there;
  int64_t distance, columns;
};

// A channel at x and what shares its words.
template <class E, class T>
void pack_pair(const ConvolutionProblem& p, const Strip& strip, const T* x, Second second, Word* s) {
  const auto place = [&](size_t axis, int64_t phase, int64_t i) {
    return (strip.first[axis] + i) * p.stride[axis] + phase - p.pad[axis];
  };
  const int64_t columns = strip.size[2], stride = p.stride[2];
  for (int64_t phase = 0; phase < strip.phases[0] * strip.phases[1] * strip.phases[2]; ++phase) {
    const int64_t phase_w = phase % strip.phases[2], phase_h = phase / strip.phases[2] % strip.phases[1],
                  phase_d = phase / strip.phases[2] / strip.phases[1];
    for (int64_t d = 0; d < strip.size[0]; ++d) {
      for (int64_t h = 0; h < strip.size[1]; ++h, s += columns) {
        const int64_t id = place(0, phase_d, d), ih = place(1, phase_h, h);
        if (id < 0 || id >= p.in[0] || ih < 0 || ih >= p.in[1]) {
          std::memset(s, 0, static_cast<size_t>(columns) * sizeof(Word));
          continue;
        }
        const T* row = x + (id * p.in[1] + ih) * p.in[2];
        const T* next = row + second.distance;
        for (int64_t c = 0; c < columns; c += L) {
          const int64_t at = place(2, phase_w, c), beyond = at + second.columns;
          if (stride == 1 && at >= 0 && beyond + L <= p.in[2] && c + L <= columns) {
            // Whose next part is elsewhere, which nothing else foresees.
            __builtin_prefetch(row + E::kDepth * p.in_size() + at, 0, 2);
            if (E::kDepth > 1) __builtin_prefetch(next + E::kDepth * p.in_size() + at, 0, 2);
            const Vec low = load_as_float(row + at);
            const Vec high = E::kDepth > 1 && second.there ? load_as_float(next + at) : Vec{};
            *reinterpret_cast<UnalignedWords*>(s + c) = E::join(low, high);
            continue;
          }
          const Vec low = load_strided(row + at, stride, -at, p.in[2] - at);
          Vec high = {};
          if (E::kDepth > 1 && second.there) {
            high = load_strided(next + at, stride, -beyond, p.in[2] - beyond);
          }
          store_words(s + c, E::join(low, high), columns - c);
        }
      }
    }
  }
}

// --- Finishing

// Where a result goes: to y, to pairs of channels in bfloat16, or to both; null where it does not.
template <class T>
struct Outputs {
  T* y;
  Word* pairs;
};

// What is added to it, as numbers or as pairs of channels; both null: nothing.
template <class T>
struct Residual {
  const T* numbers;
  const Word* pairs;

  Residual(const ConvolutionProblem& p, const void* r)
      : numbers(p.has_residual && !p.residual_pairs ? static_cast<const T*>(r) : nullptr),
        pairs(p.has_residual && p.residual_pairs ? static_cast<const Word*>(r) : nullptr) {}

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

// What the words of two channels hold of the first one and of the second.
Vec first_of_pair(Words words) { return reinterpret_cast<Vec>(words << 16); }
Vec second_of_pair(Words words) { return reinterpret_cast<Vec>(words & (Words{} + 0xffff0000u)); }
Words load_words(const Word* x, int64_t n) {
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
  T* y;
  Word* pairs;
  int64_t plane;
  const Pixels* pixels;  // of the vectors
  // Clip, Relu, LeakyRelu and nothing are bounds and a slope, which a product passes on its way out of the
  // registers.
  bool bounded;
  float slope;  // of what is below zero
  float least, most;
  // Weights of the next product, which come into the caches while this one is computed; null: none.
  const Word* next = nullptr;
  int64_t next_rows = 0;

  Finish(const ConvolutionProblem& problem, const T* b, Residual<T> r, Outputs<T> to)
      : p(problem), bias(b), residual(r), y(to.y), pairs(to.pairs), plane(p.out_size()), pixels(nullptr) {
    constexpr float kInfinite = std::numeric_limits<float>::infinity();
    const ActivationKind kind = p.act.kind;
    bounded = kind == ActivationKind::kNone || kind == ActivationKind::kRelu ||
              kind == ActivationKind::kLeakyRelu || kind == ActivationKind::kClip;
    slope = kind == ActivationKind::kLeakyRelu ? p.act.a : 1.0f;
    least = kind == ActivationKind::kRelu ? 0.0f : kind == ActivationKind::kClip ? p.act.a : -kInfinite;
    most = kind == ActivationKind::kClip ? p.act.b : kInfinite;
  }

  // What ends the channels from m on, and an image's pixels from `from` on.
  Finish at(int64_t m, const Pixels* from) const {
    Finish moved = *this;
    moved.bias += m;
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
    activate_block(p.act, o, o, static_cast<size_t>(rows * vectors * L));
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

// --- Groups of several channels

// Blocks of output channels.
int64_t blocks_of(int64_t outputs) { return ceil_div(outputs, kMaxRows); }
// Where a block of channels begins; with an even number of channels never between the two of a pair.
int64_t first_of(int64_t outputs, int64_t block) {
  const int64_t together = outputs % 2 == 0 ? 2 : 1;
  return outputs / together * block / blocks_of(outputs) * together;
}

template <class E>
Strips strips_of(const ConvolutionProblem& p, int64_t lanes) {
  return Strips(p, kStripBytes * lanes, p.groups * pairs_of<E>(p), 1);
}

// s of a strip.
template <class E>
Word* take_strip(const ConvolutionProblem& p, const Strips& strips, Workspace& workspace) {
  return workspace.take<Word>(p.groups * pairs_of<E>(p) * strips.at(p, 0).words + kPanelWidth);
}

// Words of a block of pixels, gathered.
template <class E>
int64_t block_slot(const ConvolutionProblem& p) {
  return steps_of<E>(p) * kMaxRows + L;
}

// Whether pixels that are the rows of a product have their words gathered. Where these would fill the caches, and a
// row of y fills blocks well, each block has pixels of one row instead, whose words are neighbours in s.
template <class E>
bool gathers(const ConvolutionProblem& p, const Strips& strips) {
  const Strip strip = strips.at(p, 0);
  const int64_t columns = strip.out[2], blocks = ceil_div(strip.span(), kMaxRows);
  const int64_t words = p.groups * blocks * block_slot<E>(p);
  return words * 4 <= kGatheredBytes ||
         static_cast<double>(columns) < kFull * static_cast<double>(round_up(columns, kMaxRows));
}

struct PixelBlock {
  Pixels pixels;
  int64_t first;  // in the order of s
};

std::vector<PixelBlock> pixel_blocks(const ConvolutionProblem& p, const Strip& strip, bool gathered) {
  std::vector<PixelBlock> all;
  int64_t first = 0;
  if (gathered) {
    const int64_t width = ceil_div(strip.span(), ceil_div(strip.span(), kMaxRows));
    for (const Pixels& pixels : pixels_of(p, strip, width)) {
      all.push_back({pixels, first});
      first += width;
    }
    return all;
  }
  const int64_t columns = strip.out[2], in_row = ceil_div(columns, kMaxRows);
  int64_t at = (strip.first[0] * p.out[1] + strip.first[1]) * p.out[2] + strip.first[2];
  for (int64_t d = 0; d < strip.out[0]; ++d) {
    for (int64_t h = 0; h < strip.out[1]; ++h) {
      first = (d * strip.size[1] + h) * strip.size[2];
      for (int64_t i = 0; i < in_row; ++i) {
        const int64_t begin = columns * i / in_row, count = columns * (i + 1) / in_row - begin;
        all.push_back({{(1u << count) - 1, static_cast<int32_t>(count), at}, first + begin});
        at += count;
      }
    }
  }
  return all;
}

// The words of the pixels of a strip, in blocks of rows.
template <class E>
Word* take_gathered(const ConvolutionProblem& p, const Strips& strips, Workspace& workspace) {
  const int64_t blocks = ceil_div(strips.at(p, 0).span(), kMaxRows);
  return workspace.take<Word>(p.groups * blocks * block_slot<E>(p));
}

// Panels of pixels, by the weights at w of a block of channels, which `finish` ends. Weights of the next block
// come into the caches with the first panel.
struct PixelPanels {
  const Pixels* pixels;
  int64_t vectors, from, to;
  const Word* next;
  int64_t next_rows;
};
template <class E, class F>
struct MultiplyPanels {
  template <int kRows>
  struct Of {
    static void run(const PixelPanels& of, const Word* w, const Word* s, const int64_t* offsets,
                    int64_t steps, F finish) {
      alignas(64) float o[kMaxRows * kPanelWidth];
      finish.next = of.next;
      finish.next_rows = of.next_rows;
      for (int64_t panel = of.from; panel < of.to; ++panel, finish.next = nullptr) {
        const int64_t j = panel * kPanel;
        finish.pixels = of.pixels + j;
        for (int64_t i = 0; i < kRows; ++i) finish.fetch(i);
        if (j + 1 < of.vectors) {
          multiply<E, kRows, kPanel>(w, s + j * L, Table{offsets}, steps, o, finish);
          finish.activate(kRows, kPanel, o);
        } else {
          multiply<E, kRows, 1>(w, s + j * L, Table{offsets}, steps, o, finish);
          finish.activate(kRows, 1, o);
        }
      }
    }
  };
};

// Vectors of pixels.
template <class E, class F>
void multiply_by_pixel(const ConvolutionProblem& p, const Strip& strip, const std::vector<int64_t>& offsets,
                       const Word* s, const Word* w, const F& image, Parallel& parallel) {
  const auto lanes = static_cast<int64_t>(parallel.lanes()), steps = static_cast<int64_t>(offsets.size());
  const int64_t outputs = p.M, blocks = blocks_of(outputs);
  const int64_t together = std::clamp<int64_t>(kGroupBytes / (steps * kMaxRows * 4 + 1), 1, blocks);
  const int64_t passes = ceil_div(blocks, together);
  const std::vector<Pixels> pixels = pixels_of(p, strip, L);
  const auto vectors = static_cast<int64_t>(pixels.size());
  const int64_t panels = ceil_div(vectors, kPanel);
  const int64_t parts =
      lanes == 1 ? 1 : std::clamp<int64_t>(ceil_div(4 * lanes, p.groups * passes), 1, panels);
  parallel_for(parallel, p.groups * passes * parts, [&](int64_t item, size_t) {
    const int64_t part = item % parts, pass = item / parts % passes, g = item / parts / passes;
    const Word* packed = s + g * pairs_of<E>(p) * strip.words;
    const Word* group = w + g * outputs * steps;
    PixelPanels of = {pixels.data(), vectors, panels * part / parts, panels * (part + 1) / parts, nullptr, 0};
    // What comes out of a block is written row by row, as far as its rows go on: they are many places in memory.
    for (int64_t block = pass * together; block < std::min(blocks, (pass + 1) * together); ++block) {
      const int64_t m = first_of(outputs, block), rows = first_of(outputs, block + 1) - m;
      of.next = nullptr;
      if (block + 1 < blocks) {
        of.next = group + (m + rows) * steps;
        of.next_rows = first_of(outputs, block + 2) - m - rows;
      }
      of_rows<MultiplyPanels<E, F>::template Of>(rows)(of, group + m * steps, packed, offsets.data(), steps,
                                                       image.at(g * outputs + m, pixels.data()));
    }
  });
}

// What ends a panel of channels, of a block of pixels: sums o [pixels][vectors L].
template <class F>
void end_of_panel(const F& panel, int64_t channels, int64_t vectors, const float* o) {
  alignas(64) float by_channel[L * L];
  for (int64_t j = 0; j < vectors; ++j) {
    transpose(o + j * L, vectors * L, by_channel, L);
    const int64_t here = std::min(L, channels - j * L);
    const F finish = panel.at(j * L, panel.pixels);
    for (int64_t i = 0; i < here; i += F::kPairs ? 2 : 1) {
      float* row = by_channel + i * L;
      if constexpr (F::kPairs) {
        finish(i, 0, load_aligned(row), load_aligned(row + L), row, row + L);
      } else {
        finish(i, 0, load_aligned(row), row);
      }
    }
    finish.activate(here, 1, by_channel);
  }
}

// The same where only pairs are wanted: neighbouring channels become words before they are transposed, half as many.
template <bool kResidual, bool kSlope>
void end_of_panel(const PairsAlone<kResidual, kSlope>& panel, int64_t channels, int64_t vectors,
                  const float* o) {
  alignas(64) Word by_pixel[L * L] = {}, by_pair[L * L], added[kResidual ? L * L : 1];
  const int64_t pixels = panel.pixels->count, at = panel.pixels->at, pairs = channels / 2;
  const auto numbers = [](Word* words) { return reinterpret_cast<float*>(words); };
  if (kResidual) {
    for (int64_t i = 0; i < L; ++i) {
      const Words words = i < pairs ? load_words(panel.residual + i * panel.plane + at, pixels) : Words{};
      *reinterpret_cast<AlignedWords*>(by_pair + i * L) = words;
    }
    transpose(numbers(by_pair), L, numbers(added), L);
  }
  const Vec bias = load_range(panel.bias, 0, channels),
            next_bias = load_range(panel.bias + L, 0, channels - L);
  for (int64_t i = 0; i < pixels; ++i) {
    const float* sums = o + i * vectors * L;
    Vec low = load_aligned(sums) + bias, high = vectors > 1 ? load_aligned(sums + L) + next_bias : Vec{};
    Words words;
    if constexpr (kResidual) {
      const Words r = *reinterpret_cast<const AlignedWords*>(added + i * L);
      const Vec even = shuffle(low, high, EveryOther<0>()) + first_of_pair(r);
      const Vec odd = shuffle(low, high, EveryOther<1>()) + second_of_pair(r);
      words = Brain::join(panel.within_bounds(even), panel.within_bounds(odd));
    } else {
      words = neighbours(panel.within_bounds(low), panel.within_bounds(high));
    }
    *reinterpret_cast<AlignedWords*>(by_pixel + i * L) = words;
  }
  transpose(numbers(by_pixel), L, numbers(by_pair), L);
  for (int64_t i = 0; i < pairs; ++i) {
    store_words(panel.pairs + i * panel.plane + at, *reinterpret_cast<const AlignedWords*>(by_pair + i * L),
                pixels);
  }
}

// Vectors of channels.
template <class E, class F>
void multiply_by_channel(const ConvolutionProblem& p, const Strip& strip, const std::vector<int64_t>& offsets,
                         const Word* s, const Word* w, const F& image, Parallel& parallel, Word* gathered) {
  const auto steps = static_cast<int64_t>(offsets.size());
  const int64_t outputs = p.M, panels = ceil_div(outputs, kPanelWidth), slot = block_slot<E>(p);
  std::vector<PixelBlock> pixels = pixel_blocks(p, strip, gathered != nullptr);
  const auto blocks = static_cast<int64_t>(pixels.size());
  if (gathered != nullptr) {
    parallel_for(parallel, p.groups * blocks, [&](int64_t item, size_t) {
      const int64_t g = item / blocks;
      const PixelBlock& here = pixels[static_cast<size_t>(item % blocks)];
      const Word* from = s + g * pairs_of<E>(p) * strip.words + here.first;
      Word* to = gathered + item * slot;
      for (const int64_t offset : offsets) {
        const Vec words = load(reinterpret_cast<const float*>(from + offset));
        store(reinterpret_cast<float*>(to), chosen(words, here.pixels));
        to += here.pixels.count;
      }
    });
    // As they are gathered.
    for (PixelBlock& block : pixels) block.pixels.lanes = (1u << block.pixels.count) - 1;
  }
  parallel_for(parallel, p.groups * panels, [&](int64_t item, size_t) {
    const int64_t panel = item % panels, g = item / panels;
    const int64_t vectors = panel_vectors(outputs, panel), m = panel * kPanelWidth;
    const Word* v = panel_at(w + g * panels_words(steps, outputs), steps, panel);
    // The first blocks share the fetching of the next panel.
    const Word* next = v + steps * vectors * L;
    const int64_t fetching = std::min(blocks, vectors), lines = vectors / fetching;
    alignas(64) float o[L * kPanelWidth] = {};
    for (int64_t block = 0; block < blocks; ++block) {
      const PixelBlock& here = pixels[static_cast<size_t>(block)];
      const int64_t rows = here.pixels.count;
      if (rows == 0) continue;
      const bool fetches = block < fetching && panel + 1 < panels;
      const Keep keep{next + block * steps * lines * L, fetches ? lines : 0};
      if (gathered != nullptr) {
        multiply_rows<E>(rows, vectors, gathered + (g * blocks + block) * slot, v, Panel{}, steps, o, keep);
      } else {
        const Word* packed = s + g * pairs_of<E>(p) * strip.words + here.first;
        multiply_rows<E>(rows, vectors, packed, v, TableOfRows{offsets.data()}, steps, o, keep);
      }
      const int64_t channels = std::min(kPanelWidth, outputs - m);
      end_of_panel(image.at(g * outputs + m, &here.pixels), channels, vectors, o);
    }
  });
}

// An image's part of what comes out.
template <class T>
Outputs<T> image_of(const ConvolutionProblem& p, Outputs<T> to, int64_t n) {
  const int64_t size = p.y_channels() * p.out_size();
  return {to.y == nullptr ? nullptr : to.y + n * size,
          to.pairs == nullptr ? nullptr : to.pairs + n * size / 2};
}

// Whether the words of a strip are read where they lie in x, as pixels of y read those of x at the same places. What
// vectors read beyond a pair of channels is the next pair's then; the last pair is copied.
bool reads_in_place(const ConvolutionProblem& p) {
  bool same = p.pairs && p.groups == 1 && p.C > 2 && p.in_size() >= kPanelWidth;
  for (size_t i = 0; i < 3; ++i) {
    same = same && p.kernel[i] == 1 && p.stride[i] == 1 && p.pad[i] == 0 && p.in[i] == p.out[i];
  }
  return same;
}

// x: numbers of T, or words where they lie in pairs.
template <class E, bool kTwo, class T>
void multiply_groups(const ConvolutionProblem& p, FusedConvVectors vectors, const void* x, const Word* w,
                     const T* bias, Residual<T> residual, Outputs<T> to, Parallel& parallel, void* memory) {
  const int64_t channels = p.C, pairs = pairs_of<E>(p);
  const Strips strips = strips_of<E>(p, static_cast<int64_t>(parallel.lanes()));
  Workspace workspace(memory);
  Word* s = take_strip<E>(p, strips, workspace);
  const bool in_place = reads_in_place(p);
  const bool by_channel = vectors == FusedConvVectors::kChannels;
  Word* gathered = by_channel && gathers<E>(p, strips) ? take_gathered<E>(p, strips, workspace) : nullptr;
  for (int64_t begin = 0; begin < p.out[strips.axis]; begin += strips.most) {
    const Strip strip = strips.at(p, begin);
    std::vector<int64_t> offsets = step_offsets<E>(p, strip);
    for (int64_t n = 0; n < p.N; ++n) {
      const Word* begins = s;
      if (in_place) {
        const auto* words = static_cast<const float*>(x) + n * pairs * p.in_size();
        pack_pair<Single>(p, strip, words + (pairs - 1) * p.in_size(), Second{}, s);
        begins = reinterpret_cast<const Word*>(words) +
                 (strip.first[0] * p.in[1] + strip.first[1]) * p.in[2] + strip.first[2];
        for (int64_t pair = 0; pair + 1 < pairs; ++pair) {
          offsets[static_cast<size_t>(pair)] = pair * p.in_size();
        }
        const intptr_t distance = reinterpret_cast<intptr_t>(s) - reinterpret_cast<intptr_t>(begins);
        offsets.back() = distance / static_cast<intptr_t>(sizeof(Word));
      }
      parallel_for(parallel, in_place ? 0 : p.groups * pairs, [&](int64_t item, size_t) {
        Word* packed = s + item * strip.words;
        if (p.pairs) {
          const auto* words = static_cast<const float*>(x) + (n * p.groups * pairs + item) * p.in_size();
          return pack_pair<Single>(p, strip, words, Second{}, packed);
        }
        const int64_t pair = item % pairs, c = item / pairs * channels + pair * E::kDepth;
        const T* image = static_cast<const T*>(x) + (n * p.x_channels() + c) * p.in_size();
        const bool both = pair * E::kDepth + 1 < channels;
        const Second columns = {pairs_columns<E>(p), p.dilation[2], p.dilation[2]};
        pack_pair<E>(p, strip, image, both ? Second{true, p.in_size(), 0} : columns, packed);
      });
      const Finish<T, kTwo> finish(p, bias, residual.of_image(p, n), image_of(p, to, n));
      const auto multiply_and = [&](const auto& end) {
        if (by_channel) return multiply_by_channel<E>(p, strip, offsets, begins, w, end, parallel, gathered);
        multiply_by_pixel<E>(p, strip, offsets, begins, w, end, parallel);
      };
      if constexpr (kTwo) {
        if (finish.gives_pairs_alone()) {
          if (residual.pairs != nullptr) {
            multiply_and(PairsAlone<true>(finish));
          } else if (finish.slope != 1.0f) {
            multiply_and(PairsAlone<false, true>(finish));
          } else {
            multiply_and(PairsAlone<false>(finish));
          }
          continue;
        }
      }
      multiply_and(finish);
    }
  }
}

// --- Groups of one channel

// The sums over taps of kVectors vectors; o [kVectors L] as in Finish.
template <int kVectors, class T>
void filter(const float* s, const int64_t* offsets, const float* w, int64_t taps, float* o,
            const Finish<T>& finish) {
  Vec sum[kVectors] = {};
  for (int64_t tap = 0; tap < taps; ++tap) {
    const float* at = s + offsets[tap];
    const Vec weight = splat(w[tap]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[j] += weight * load(at + j * L);
  }
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) finish(0, j, sum[j], o + j * L);
}

// The nearest numbers of bfloat16.
Vec rounded(Vec x) { return reinterpret_cast<Vec>(Brain::join(x, x) & (Words{} + 0xffff0000u)); }

// Words of a row of zeros and of two channels of x for each lane.
int64_t pair_slot(const ConvolutionProblem& p) {
  return round_up(p.in[2], L) + (p.pairs ? 0 : round_up(p.in_size(), L));
}

// Two channels of x as words, which are made in `memory` where x has numbers.
const Word* pair_at(const ConvolutionProblem& p, const void* x, int64_t item, Word* memory) {
  if (p.pairs) return static_cast<const Word*>(x) + item * p.in_size();
  const float* low = static_cast<const float*>(x) + 2 * item * p.in_size();
  for (int64_t i = 0; i < p.in_size(); i += L) {
    const int64_t n = p.in_size() - i;
    store_words(memory + i, Brain::join(load_range(low + i, 0, n), load_range(low + p.in_size() + i, 0, n)),
                n);
  }
  return memory;
}

Strips plane_strips(const ConvolutionProblem& p) { return Strips(p, kPlaneBytes, 1, 4); }

// Words of s for each lane.
int64_t plane_slot(const ConvolutionProblem& p, const Strips& strips) {
  return round_up(strips.at(p, 0).words + kPlaneVectors * L, L);
}

template <class T>
void filter_planes(const ConvolutionProblem& p, const T* x, const Word* w, const T* bias,
                   Residual<T> residual, T* y, Parallel& parallel, void* memory) {
  const int64_t taps = p.taps(), outputs = p.M;
  const Strips strips = plane_strips(p);
  const int64_t slot = plane_slot(p, strips);
  auto* words = static_cast<Word*>(memory);
  const auto* weights = reinterpret_cast<const float*>(w);
  for (int64_t begin = 0; begin < p.out[strips.axis]; begin += strips.most) {
    const Strip strip = strips.at(p, begin);
    const std::vector<int64_t> offsets = step_offsets<Single>(p, strip);
    const std::vector<Pixels> pixels = pixels_of(p, strip, L);
    const auto vectors = static_cast<int64_t>(pixels.size());
    parallel_for(parallel, p.N * p.x_channels(), [&](int64_t item, size_t lane) {
      Word* s = words + static_cast<int64_t>(lane) * slot;
      pack_pair<Single>(p, strip, x + item * p.in_size(), Second{}, s);
      auto* plane = reinterpret_cast<float*>(s);
      if (p.bfloat16) {
        for (int64_t i = 0; i < strip.words; i += L) store(plane + i, rounded(load(plane + i)));
      }
      const int64_t n = item / p.x_channels(), c = item % p.x_channels(),
                    first = n * p.y_channels() * p.out_size();
      const Finish<T> image(p, bias, residual.of_image(p, n), {y + first, nullptr});
      alignas(64) float o[kPlaneVectors * L];
      for (int64_t m = c * outputs; m < (c + 1) * outputs; ++m) {
        for (int64_t j = 0; j < vectors;) {
          const bool full = j + kPlaneVectors <= vectors;
          const int64_t here = full ? kPlaneVectors : 1;
          const auto fn = full ? filter<kPlaneVectors, T> : filter<1, T>;
          const Finish<T> finish = image.at(m, pixels.data() + j);
          fn(plane + j * L, offsets.data(), weights + m * taps, taps, o, finish);
          finish.activate(1, here, o);
          j += here;
        }
      }
    });
  }
}

// --- Groups of one channel, in pairs

constexpr int64_t kTogether =
    4;  // vectors of y, below one another: sums do not wait, and rows of x are read once

// The words of L neighbouring columns of y at one tap: where they are in a row of x, and which of them are. A
// vector of a narrow y has the columns of two rows, half of its lanes each.
template <int kStride, bool kNarrow>
struct Columns {
  int64_t at, lo, hi;
#if defined(__AVX512F__)
  __mmask16 low, high;  // of the first and of the second L words there
#endif

  Columns() = default;
  Columns(int64_t begin, int64_t size) : at(begin), lo(-begin), hi(size - begin) {
#if defined(__AVX512F__)
    const auto mask = [](int64_t from, int64_t to) {
      from = std::clamp<int64_t>(from, 0, L);
      to = std::clamp<int64_t>(to, from, L);
      return static_cast<__mmask16>(((1u << to) - 1) & ~((1u << from) - 1));
    };
    low = mask(lo, hi);
    high = mask(lo - L, hi - L);
#endif
  }

  Words of(const Word* row, const Word* next, int64_t stride) const {
#if defined(__AVX512F__)
    if constexpr (kNarrow && kStride == 1) {
      const auto first = _mm512_castps256_ps512(_mm256_maskz_loadu_ps(static_cast<__mmask8>(low), row + at));
      return (Words)_mm512_insertf32x8(first, _mm256_maskz_loadu_ps(static_cast<__mmask8>(low), next + at),
                                       1);
    }
    if constexpr (kStride == 1 || kStride == 2) {
      const auto first = (Vec)_mm512_maskz_loadu_ps(low, row + at);
      if constexpr (kStride == 1) return reinterpret_cast<Words>(first);
      const auto second =
          (Vec)(kNarrow ? _mm512_maskz_loadu_ps(low, next + at) : _mm512_maskz_loadu_ps(high, row + at + L));
      return reinterpret_cast<Words>(shuffle(first, second, EveryOther<0>()));
    }
#endif
    static_cast<void>(next);
    return reinterpret_cast<Words>(load_strided(reinterpret_cast<const float*>(row) + at, stride, lo, hi));
  }
};

// Rows of x under each other, as a filter reads them: the one at `at`, or one of zeros.
struct Rows {
  const Word *image, *zeros;
  int64_t height, width;
  const Word* at(int64_t row) const {
    const Word* inside = image + row * width;
    return static_cast<uint64_t>(row) < static_cast<uint64_t>(height) ? inside : zeros;
  }
};

// A filter of a window and a stride that are known here, or of any where they are 0.
template <int kKernelH, int kKernelW, int kStride, bool kNarrow>
struct Filter {
  using Taken = Columns<kStride, kNarrow>;
  static constexpr int64_t kRowsOfVector = kNarrow ? 2 : 1;
  static constexpr int64_t kColumns = kNarrow ? L / 2 : L;

  // Adds to the sums of kTogether vectors of y, the first of whose rows begins at row `top` of x, what two channels
  // with the weights w and next give.
  static void add(const ConvolutionProblem& p, const Rows& rows, int64_t top, const Taken* columns,
                  const float* w, const float* next, Vec (&sum)[2][kTogether]) {
    const Words high_half = Words{} + 0xffff0000u;
    if constexpr (kStride > 0) {
      constexpr int kStep = kStride * kRowsOfVector;
      std::array<Taken, kKernelW> taken;  // which the compiler sees that nothing else changes
      std::copy_n(columns, kKernelW, taken.begin());
#pragma GCC unroll 16
      for (int i = 0; i < (kTogether - 1) * kStep + kKernelH; ++i) {
        const Word *row = rows.at(top + i), *below = kNarrow ? rows.at(top + i + kStride) : row;
#pragma GCC unroll 8
        for (int k = 0; k < kKernelW; ++k) {
          const Words words = taken[k].of(row, below, kStride);
          const Vec low = reinterpret_cast<Vec>(words << 16), high = reinterpret_cast<Vec>(words & high_half);
#pragma GCC unroll 4
          for (int r = 0; r < kTogether; ++r) {
            const int h = i - r * kStep;
            if (h < 0 || h >= kKernelH) continue;
            sum[0][r] += splat(w[h * kKernelW + k]) * low;
            sum[1][r] += splat(next[h * kKernelW + k]) * high;
          }
        }
      }
    } else {
      for (int64_t tap = 0; tap < p.taps(); ++tap) {
        const int64_t h = tap / p.kernel[2] * p.dilation[1];
        for (int64_t r = 0; r < kTogether; ++r) {
          const Word* row = rows.at(top + r * p.stride[1] + h);
          const Words words = columns[tap % p.kernel[2]].of(row, row, p.stride[2]);
          sum[0][r] += splat(w[tap]) * reinterpret_cast<Vec>(words << 16);
          sum[1][r] += splat(next[tap]) * reinterpret_cast<Vec>(words & high_half);
        }
      }
    }
  }

  // Images of groups of one input and one output channel each, two groups at a time. Rows of x are read where they
  // are; what the window covers beyond them is a row of zeros.
  static void run(const ConvolutionProblem& p, const void* x, const float* w, const float* bias,
                  Residual<float> residual, Outputs<float> to, Parallel& parallel, void* memory) {
    const int64_t taps = p.taps(), pairs = p.groups / 2, width = p.kernel[2],
                  step = kTogether * kRowsOfVector;
    const int64_t blocks = ceil_div(p.out[2], kColumns);
    std::vector<Taken> columns;
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t k = 0; k < width; ++k) {
        columns.emplace_back(block * kColumns * p.stride[2] + k * p.dilation[2] - p.pad[2], p.in[2]);
      }
    }
    const int64_t slot = pair_slot(p);
    parallel_for(parallel, p.N * pairs, [&](int64_t item, size_t lane) {
      Word* zeros = static_cast<Word*>(memory) + static_cast<int64_t>(lane) * slot;
      std::memset(zeros, 0, static_cast<size_t>(p.in[2]) * sizeof(Word));
      const Word* image = pair_at(p, x, item, zeros + round_up(p.in[2], L));
      const Rows rows = {image, zeros, p.in[1], p.in[2]};
      const int64_t n = item / pairs, c = item % pairs * 2;
      const float* weights = w + c * taps;
      Pixels pixels[kTogether];
      const Finish<float, true> finish =
          Finish<float, true>(p, bias, residual.of_image(p, n), image_of(p, to, n)).at(c, pixels);
      const PairsAlone<false> alone(finish);
      const bool gives_pairs_alone = finish.gives_pairs_alone() && finish.slope == 1.0f && !p.has_residual;
      alignas(64) float o[2 * kTogether * L];
      for (int64_t y = 0; y < p.out[1]; y += step) {
        const int64_t here = std::min(kTogether, ceil_div(p.out[1] - y, kRowsOfVector));
        for (int64_t block = 0; block < blocks; ++block) {
          const int64_t count = std::min(kColumns, p.out[2] - block * kColumns);
          for (int64_t r = 0; r < here; ++r) {
            const int64_t row = y + r * kRowsOfVector;
            const bool two = kNarrow && row + 1 < p.out[1];
            uint32_t lanes = (1u << count) - 1;
            if (two) lanes |= lanes << kColumns;
            pixels[r] = {lanes, static_cast<int32_t>(two ? 2 * count : count),
                         row * p.out[2] + block * kColumns};
          }
          Vec sum[2][kTogether] = {};
          add(p, rows, y * p.stride[1] - p.pad[1], columns.data() + block * width, weights, weights + taps,
              sum);
          if (gives_pairs_alone) {
#pragma GCC unroll 4
            for (int64_t r = 0; r < kTogether; ++r) {
              if (r < here)
                alone(0, r, sum[0][r] + alone.begin(0), sum[1][r] + alone.begin(1), nullptr, nullptr);
            }
            continue;
          }
#pragma GCC unroll 4
          for (int64_t r = 0; r < kTogether; ++r) {
            if (r < here) finish(0, r, sum[0][r], sum[1][r], o + r * L, o + (here + r) * L);
          }
          finish.activate(2, here, o);
        }
      }
    });
  }
};

// Half vectors are for rows of at most that many columns, and where several rows are there.
template <int kKernelH, int kKernelW, int kStride>
auto filter_of(const ConvolutionProblem& p) {
#if defined(__AVX512F__)
  if (p.out[2] <= L / 2 && p.out[1] > 1) return Filter<kKernelH, kKernelW, kStride, true>::run;
#else
  static_cast<void>(p);
#endif
  return Filter<kKernelH, kKernelW, kStride, false>::run;
}

void filter_pairs(const ConvolutionProblem& p, const void* x, const float* w, const float* bias,
                  Residual<float> residual, Outputs<float> to, Parallel& parallel, void* memory) {
  const int64_t kernel = p.kernel[1], stride = p.stride[1];
  auto run = Filter<0, 0, 0, false>::run;
  if (kernel == p.kernel[2] && stride == p.stride[2] && p.dilation[1] == 1 && p.dilation[2] == 1) {
    if (kernel == 3 && stride == 1) run = filter_of<3, 3, 1>(p);
    if (kernel == 3 && stride == 2) run = filter_of<3, 3, 2>(p);
    if (kernel == 5 && stride == 1) run = filter_of<5, 5, 1>(p);
    if (kernel == 5 && stride == 2) run = filter_of<5, 5, 2>(p);
  }
  run(p, x, w, bias, residual, to, parallel, memory);
}

// --- Weights

template <class E>
int64_t group_words(const ConvolutionProblem& p, FusedConvVectors vectors) {
  const int64_t outputs = p.M, steps = steps_of<E>(p);
  return vectors == FusedConvVectors::kChannels ? panels_words(steps, outputs) : steps * outputs;
}

template <class E, class T>
void prepare_groups(const ConvolutionProblem& p, FusedConvVectors vectors, const T* w, Word* words) {
  const int64_t channels = p.C, outputs = p.M, taps = p.taps();
  const int64_t steps = steps_of<E>(p), size = group_words<E>(p, vectors);
  for (int64_t m = 0; m < p.y_channels(); ++m) {
    // The channel's word of the first step, and how far it is to the next one's.
    Word* to = words + m / outputs * size;
    const int64_t i = m % outputs;
    int64_t distance;
    if (vectors == FusedConvVectors::kChannels) {
      const int64_t panel = i / kPanelWidth;
      to = panel_at(to, steps, panel) + i % kPanelWidth;
      distance = panel_vectors(outputs, panel) * L;
    } else {
      int64_t block = i * blocks_of(outputs) / outputs;
      while (first_of(outputs, block + 1) <= i) ++block;
      const int64_t first = first_of(outputs, block);
      to += first * steps + i - first;
      distance = first_of(outputs, block + 1) - first;
    }
    const T* in = w + m * channels * taps;
    const auto put = [&](Vec low, Vec high) {
      *to = E::join(low, high)[0];
      to += distance;
    };
    const auto weight = [&](int64_t c, int64_t tap) { return splat(static_cast<float>(in[c * taps + tap])); };
    for (int64_t c = 0; c < channels; c += E::kDepth) {
      const bool both = E::kDepth > 1 && c + 1 < channels;
      const int64_t width = p.kernel[2];
      if (!both && pairs_columns<E>(p)) {
        for (int64_t row = 0; row < taps; row += width) {
          for (int64_t w = 0; w < width; w += 2) {
            if (w + 1 < width) put(weight(c, row + w), weight(c, row + w + 1));
            if (w + 1 == width) put(Vec{}, weight(c, row + w));
          }
        }
        continue;
      }
      for (int64_t tap = 0; tap < taps; ++tap) put(weight(c, tap), both ? weight(c + 1, tap) : Vec{});
    }
  }
}

template <class E>
size_t multiply_workspace(const ConvolutionProblem& p, FusedConvVectors vectors, size_t lanes) {
  Workspace workspace(nullptr);
  const Strips strips = strips_of<E>(p, static_cast<int64_t>(lanes));
  take_strip<E>(p, strips, workspace);
  const bool gathered = vectors == FusedConvVectors::kChannels && gathers<E>(p, strips);
  if (gathered) take_gathered<E>(p, strips, workspace);
  return workspace.bytes();
}

bool one_channel(const ConvolutionProblem& p) { return p.C == 1; }
bool empty(const ConvolutionProblem& p) { return p.N == 0 || p.M == 0 || p.out_size() == 0; }

}  // namespace

template <class T>
FusedConvVectors fused_conv_choose(const ConvolutionProblem& problem) {
  const ConvolutionProblem p = with_joined_axes(problem);
  if (one_channel(p) || p.in_size() == 0 || p.out_size() <= 0 || p.M < 2 * L) {
    return FusedConvVectors::kPixels;
  }
  const int64_t span = Strip(p, 0, 0, p.out[0]).span();
  const bool few = static_cast<double>(p.out_size()) < kFull * static_cast<double>(round_up(span, L));
  return few ? FusedConvVectors::kChannels : FusedConvVectors::kPixels;
}

template <class T>
size_t fused_conv_weights(const ConvolutionProblem& p, FusedConvVectors vectors) {
  if (one_channel(p)) return static_cast<size_t>(p.y_channels() * p.taps() + L) * sizeof(float);
  const int64_t words = p.bfloat16 ? group_words<Brain>(p, vectors) : group_words<Single>(p, vectors);
  return static_cast<size_t>(p.groups * words) * sizeof(Word);
}

template <class T>
void fused_conv_prepare(const ConvolutionProblem& p, FusedConvVectors vectors, const T* w, void* weights) {
  std::memset(weights, 0, GRAPHOPT_ISA::fused_conv_weights<T>(p, vectors));
  auto* words = static_cast<Word*>(weights);
  if (!one_channel(p)) {
    if (p.bfloat16) return prepare_groups<Brain>(p, vectors, w, words);
    return prepare_groups<Single>(p, vectors, w, words);
  }
  auto* out = static_cast<float*>(weights);
  const int64_t count = p.y_channels() * p.taps();
  for (int64_t i = 0; i < count; i += L) {
    const Vec numbers = load_range(w + i, 0, count - i);
    store(out + i, p.bfloat16 ? rounded(numbers) : numbers);
  }
}

template <class T>
size_t fused_conv_workspace(const ConvolutionProblem& problem, FusedConvVectors vectors, size_t lanes) {
  const ConvolutionProblem p = with_joined_axes(problem);
  if (empty(p)) return 0;
  if (one_channel(p)) return lanes * static_cast<size_t>(plane_slot(p, plane_strips(p))) * sizeof(Word);
  return p.bfloat16 ? multiply_workspace<Brain>(p, vectors, lanes)
                    : multiply_workspace<Single>(p, vectors, lanes);
}

template <class T>
void fused_conv(const ConvolutionProblem& problem, FusedConvVectors vectors, const T* x, const void* weights,
                const T* b, const T* r, T* y, Parallel& parallel, void* workspace) {
  const ConvolutionProblem p = with_joined_axes(problem);
  if (empty(p)) return;
  const auto* w = static_cast<const Word*>(weights);
  const Residual<T> residual(p, r);
  if (one_channel(p)) return filter_planes(p, x, w, b, residual, y, parallel, workspace);
  const Outputs<T> to = {y, nullptr};
  if (p.bfloat16)
    return multiply_groups<Brain, false>(p, vectors, x, w, b, residual, to, parallel, workspace);
  multiply_groups<Single, false>(p, vectors, x, w, b, residual, to, parallel, workspace);
}

template <class T>
size_t pairs_conv_workspace(const ConvolutionProblem& problem, FusedConvVectors vectors, size_t lanes) {
  const ConvolutionProblem p = one_channel(problem) ? problem : with_joined_axes(problem);
  if (empty(p)) return 0;
  if (one_channel(p)) return lanes * static_cast<size_t>(pair_slot(p)) * sizeof(Word);
  return multiply_workspace<Brain>(p, vectors, lanes);
}

template <class T>
void pairs_conv(const ConvolutionProblem& problem, FusedConvVectors vectors, const void* x,
                const void* weights, const T* b, const void* r, T* y, void* pairs, Parallel& parallel,
                void* workspace) {
  const ConvolutionProblem p = one_channel(problem) ? problem : with_joined_axes(problem);
  if (empty(p)) return;
  const Outputs<T> to = {y, static_cast<Word*>(pairs)};
  const Residual<T> residual(p, r);
  const auto* w = static_cast<const Word*>(weights);
  if (one_channel(p)) {
    return filter_pairs(p, x, reinterpret_cast<const float*>(w), b, residual, to, parallel, workspace);
  }
  if (pairs != nullptr || p.residual_pairs) {
    return multiply_groups<Brain, true>(p, vectors, x, w, b, residual, to, parallel, workspace);
  }
  multiply_groups<Brain, false>(p, vectors, x, w, b, residual, to, parallel, workspace);
}

template FusedConvVectors fused_conv_choose<float>(const ConvolutionProblem&);
template FusedConvVectors fused_conv_choose<half>(const ConvolutionProblem&);
GRAPHOPT_INSTANTIATE_PACKED(fused_conv, ConvolutionProblem, FusedConvVectors, float)
GRAPHOPT_INSTANTIATE_PACKED(fused_conv, ConvolutionProblem, FusedConvVectors, half)
template size_t pairs_conv_workspace<float>(const ConvolutionProblem&, FusedConvVectors, size_t);
template void pairs_conv(const ConvolutionProblem&, FusedConvVectors, const void*, const void*, const float*,
                         const void*, float*, void*, Parallel&, void*);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
