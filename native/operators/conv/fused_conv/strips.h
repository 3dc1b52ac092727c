// The packing of x for the CPU kernels of FusedConv. x is packed strip by strip, with its padding, as words of two
// channels (in bfloat16) or one channel. A phase is a position modulo the stride. Elements are sorted by phase:
// adjacent pixels of y then read adjacent words. The packed strip is called s:
//
//   s [group][pair of channels][phase][depth][row][column]
//
// The position of a pixel of y is the position of its first tap in s. Pixels have the same order in s as in y. Between
// the pixels, s has columns and rows that only the other taps read. Vectors also compute results at these positions;
// stores drop them. For kernel files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/microkernels/gemm.h"
#include "operators/conv/convolution/problem.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

constexpr int64_t kStripBytes = 256 << 10;  // bytes of s per thread: a part of a second-level cache

// A part of y along its first axis with more than one element, and the layout of the part of x that it reads.
struct Strip {
  ConvolutionProblem::Axes out, first;    // sizes and first index of the part of y
  ConvolutionProblem::Axes phases, size;  // number of phases of s, and sizes of a phase
  int64_t plane, words;                   // words of a phase, and of all phases of a pair of channels

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
    // An odd number of vectors spreads the words of a pixel over all sets of the cache.
    words = round_up(words * plane, L) | L;
  }

  // Returns the number of positions of s from the first to the last pixel of y, including both.
  int64_t span() const { return ((out[0] - 1) * size[1] + out[1] - 1) * size[2] + out[2]; }
  // Returns the offset of the words of tap (d, h, w).
  int64_t offset(const ConvolutionProblem& p, const ConvolutionProblem::Axes& tap) const {
    int64_t phase = 0, position = 0;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t at = tap[i] * p.dilation[i];
      phase = phase * phases[i] + at % p.stride[i];
      position = position * size[i] + at / p.stride[i];
    }
    return phase * plane + position;
  }
};

// The division of y into strips whose s fits in the caches.
struct Strips {
  size_t axis;   // the first axis with more than one element
  int64_t most;  // maximum number of elements of this axis in a strip

  // A strip has at most `bytes` bytes of s, for `depth` planes of words, but at least `least` elements of the axis.
  Strips(const ConvolutionProblem& p, int64_t bytes, int64_t depth, int64_t least) : axis(0) {
    while (axis < 2 && p.out[axis] == 1) ++axis;
    most = p.out[axis];
    const auto taken = [&](int64_t n) { return depth * Strip(p, axis, 0, n).words * 4; };
    const int64_t whole = taken(most), one = taken(1);
    if (whole <= bytes) return;
    const int64_t more = std::max<int64_t>((whole - one) / std::max<int64_t>(most - 1, 1), 1);
    most = std::min(most, std::max((bytes - one) / more, least));
    // Strips of nearly equal size; along columns they are multiples of a vector.
    most = ceil_div(p.out[axis], ceil_div(p.out[axis], most));
    if (axis == 2) most = std::min(round_up(most, L), p.out[axis]);
  }
  Strip at(const ConvolutionProblem& p, int64_t begin) const {
    return Strip(p, axis, begin, std::min(p.out[axis], begin + most));
  }
};

// The threads that share a GEMM, and the images that are multiplied in one call of the thread pool.
struct Sharing {
  int64_t workers, images;

  // Each image has `items` work items. Returns into how many parts to divide each item: at most `most`. All images
  // together then have about four parts for each thread.
  int64_t parts(int64_t items, int64_t most) const {
    return workers == 1 ? 1 : std::clamp<int64_t>(ceil_div(4 * workers, items * images), 1, most);
  }
};

// Calls f with the format of a problem's words.
template <class F>
auto with_words(const ConvolutionProblem& p, const F& f) {
  return p.quantized ? f(ShortPairs()) : p.bfloat16 ? f(Bfloat16Pairs()) : f(Float32());
}

// Returns whether the words of the last channel have two adjacent columns of the window. This needs an odd number of
// channels, whose last channel is without a partner. Each step of the last channel then multiplies two taps of a row.
template <class E>
bool pairs_columns(const ConvolutionProblem& p) {
  return E::kDepth > 1 && p.C % 2 != 0 && p.kernel[2] > 1;
}

// Returns the first column of each word in a row of the window. `last`: for the last word of channels, which may have a
// single channel. For a single channel with an odd number of columns, the last two words share a column. If the last
// word reached beyond the window instead, it could hold an infinity, which a zero weight would turn into NaN.
template <class E>
std::vector<int64_t> columns_of(const ConvolutionProblem& p, bool last) {
  std::vector<int64_t> columns;
  const bool two = last && pairs_columns<E>(p);
  for (int64_t w = 0; w < p.kernel[2]; w += two ? 2 : 1) {
    columns.push_back(two ? std::min(w, p.kernel[2] - 2) : w);
  }
  return columns;
}

// Returns the number of words for the channels of a group.
template <class E>
int64_t pairs_of(const ConvolutionProblem& p) {
  return ceil_div(p.C, E::kDepth);
}

template <class E>
int64_t steps_of(const ConvolutionProblem& p) {
  const auto last = static_cast<int64_t>(columns_of<E>(p, true).size());
  return ((pairs_of<E>(p) - 1) * p.kernel[2] + last) * p.kernel[0] * p.kernel[1];
}

// The offset of the word that a pixel reads in each step, relative to the pixel's position in s.
struct Steps {
  const int64_t* offsets;
  int64_t count;
  // Vectors that end beyond position `readable` use the offsets `at_end`, because `offsets` would lead beyond the end
  // of x.
  int64_t readable = std::numeric_limits<int64_t>::max();
  const int64_t* at_end = nullptr;

  // Returns the offsets for a vector that ends before position `end` of s.
  const int64_t* until(int64_t end) const { return end > readable ? at_end : offsets; }
};

// Returns the offset of each step of the GEMM.
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

// The elements of a vector that are pixels of y.
struct Pixels {
  uint32_t mask;  // one bit for each element of the vector
  int32_t count;
  int64_t at;  // index of the first one in a plane of y
};

// The pixels of a strip, in vectors of `width` pixels.
inline std::vector<Pixels> pixels_of(const ConvolutionProblem& p, const Strip& strip, int64_t width) {
  std::vector<Pixels> pixels(static_cast<size_t>(ceil_div(strip.span(), width)));
  const int64_t first = (strip.first[0] * p.out[1] + strip.first[1]) * p.out[2] + strip.first[2];
  int64_t at = first, d = 0, h = 0, w = 0;
  for (Pixels& vector : pixels) {
    vector = {0, 0, at};
    for (int64_t at_vector = 0; at_vector < width;) {
      const int64_t run = std::min(width - at_vector, strip.size[2] - w);
      const bool inside = h < strip.out[1] && d < strip.out[0];
      const int64_t count = inside ? std::clamp<int64_t>(strip.out[2] - w, 0, run) : 0;
      vector.mask |= ((1u << count) - 1) << at_vector;
      vector.count += static_cast<int32_t>(count);
      at_vector += run;
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

// Moves the elements of v that are pixels of y to the front, in order.
inline Vec compressed(Vec v, const Pixels& pixels) {
  return pixels.count == L ? v : move_to_front(v, pixels.mask);
}

// Returns x[i * stride] for i in [0, L) where lo <= i * stride < hi, 0 elsewhere.
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

inline void store_words(Word* to, Words words, int64_t n) {
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

// The second element of a word, if `there`. In x, it is `distance` elements after the first element, and `columns`
// columns further in the row (0 if it belongs to the next channel).
struct Second {
  bool there;
  int64_t distance, columns;
};

// Packs the words whose first elements are the channel at x. The format makes words with make_words.
template <class E, class T>
void pack_words(const E& format, const ConvolutionProblem& p, const Strip& strip, const T* x, Second second,
                Word* s) {
  const auto x_index = [&](size_t axis, int64_t phase, int64_t i) {
    return (strip.first[axis] + i) * p.stride[axis] + phase - p.pad[axis];
  };
  const int64_t columns = strip.size[2], stride = p.stride[2];
  for (int64_t phase = 0; phase < strip.phases[0] * strip.phases[1] * strip.phases[2]; ++phase) {
    const int64_t phase_w = phase % strip.phases[2], phase_h = phase / strip.phases[2] % strip.phases[1],
                  phase_d = phase / strip.phases[2] / strip.phases[1];
    for (int64_t d = 0; d < strip.size[0]; ++d) {
      for (int64_t h = 0; h < strip.size[1]; ++h, s += columns) {
        const int64_t id = x_index(0, phase_d, d), ih = x_index(1, phase_h, h);
        if (id < 0 || id >= p.in[0] || ih < 0 || ih >= p.in[1]) {
          std::memset(s, 0, static_cast<size_t>(columns) * sizeof(Word));
          continue;
        }
        const T* row = x + (id * p.in[1] + ih) * p.in[2];
        const T* next = row + second.distance;
        for (int64_t c = 0; c < columns; c += L) {
          const int64_t at = x_index(2, phase_w, c), beyond = at + second.columns;
          if (stride <= 2 && at >= 0 && beyond + stride * L <= p.in[2] && c + L <= columns) {
            // The next channels of x are far away: hardware prefetching does not reach them.
            __builtin_prefetch(row + E::kDepth * p.in_size() + at, 0, 2);
            if (E::kDepth > 1) __builtin_prefetch(next + E::kDepth * p.in_size() + at, 0, 2);
            const auto load_row = [stride](const T* from) {
              const Vec first = load_as_float(from);
              return stride == 1 ? first : shuffle(first, load_as_float(from + L), EveryOther<0>());
            };
            const Vec low = load_row(row + at);
            const Vec high = E::kDepth > 1 && second.there ? load_row(next + at) : Vec{};
            *reinterpret_cast<UnalignedWords*>(s + c) = format.make_words(low, high);
            continue;
          }
          const Vec low = load_strided(row + at, stride, -at, p.in[2] - at);
          Vec high = {};
          if (E::kDepth > 1 && second.there) {
            high = load_strided(next + at, stride, -beyond, p.in[2] - beyond);
          }
          store_words(s + c, format.make_words(low, high), columns - c);
        }
      }
    }
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
