// Depthwise convolutions (one input and one output channel in each group), two groups at a time. A word (32 bits) has
// the bfloat16 values of one pixel in the channels of both groups.
#include "operators/conv/fused_conv/depthwise_cpu.h"

#include <array>

#include "cpu/isa.h"
#include "cpu/parallel_for.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Returns the words of memory for each worker thread: a row of zeros and, unless x is NCHW2c, two channels of x.
int64_t pair_slot(const ConvolutionProblem& p) {
  return round_up(p.in[2], L) + (p.x_nchw2c ? 0 : round_up(p.in_size(), L));
}

// Returns two channels of x as words. Packs them to `memory` unless x is NCHW2c.
const Word* pair_at(const ConvolutionProblem& p, const void* x, int64_t item, Word* memory) {
  if (p.x_nchw2c) return static_cast<const Word*>(x) + item * p.in_size();
  const float* low = static_cast<const float*>(x) + 2 * item * p.in_size();
  for (int64_t i = 0; i < p.in_size(); i += L) {
    const int64_t n = p.in_size() - i;
    store_words(memory + i,
                Bfloat16Pairs::make_words(load_range(low + i, 0, n), load_range(low + p.in_size() + i, 0, n)),
                n);
  }
  return memory;
}

// Vectors of y, in consecutive rows, that are computed together. Their sums are independent, and each row of x is read
// once for all of them.
constexpr int64_t kStacked = 4;

// Locates the words of x that one tap reads for L adjacent columns of y: the position in a row of x, and masks of the
// words inside the row. With kNarrow, a vector has L / 2 columns of each of two rows of y.
template <int kStride, bool kNarrow>
struct Columns {
  int64_t at, lo, hi;  // the words at + [lo, hi) are inside the row
#if defined(__AVX512F__)
  __mmask16 low, high;  // masks of the first and the second L words
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

  // Loads the words from `row`. With kNarrow, the second half comes from `next`, the row of x for the second row of y.
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

// The rows of x: rows outside the image are zeros.
struct Rows {
  const Word *image, *zeros;
  int64_t height, width;
  const Word* at(int64_t row) const {
    const Word* inside = image + row * width;
    return static_cast<uint64_t>(row) < static_cast<uint64_t>(height) ? inside : zeros;
  }
};

// A depthwise convolution with a compile-time window and stride, or with any window and stride if these are 0.
template <int kKernelH, int kKernelW, int kStride, bool kNarrow>
struct Filter {
  using TapColumns = Columns<kStride, kNarrow>;
  static constexpr int64_t kRowsOfVector = kNarrow ? 2 : 1;
  static constexpr int64_t kColumns = kNarrow ? L / 2 : L;

  // Adds the taps of two channels to the sums of kStacked vectors of y. The weights of the channels are w and `next`.
  // The window of the first vector begins at row `top` of x.
  static void add(const ConvolutionProblem& p, const Rows& rows, int64_t top, const TapColumns* columns,
                  const float* w, const float* next, Vec (&sum)[2][kStacked]) {
    if constexpr (kStride > 0) {
      constexpr int kStep = kStride * kRowsOfVector;
      std::array<TapColumns, kKernelW> local;  // a local copy: the compiler sees that it does not change
      std::copy_n(columns, kKernelW, local.begin());
#pragma GCC unroll 16
      for (int i = 0; i < (kStacked - 1) * kStep + kKernelH; ++i) {
        const Word *row = rows.at(top + i), *below = kNarrow ? rows.at(top + i + kStride) : row;
#pragma GCC unroll 8
        for (int k = 0; k < kKernelW; ++k) {
          const Words words = local[k].of(row, below, kStride);
          const Vec low = first_of_pair(words), high = second_of_pair(words);
#pragma GCC unroll 4
          for (int r = 0; r < kStacked; ++r) {
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
        for (int64_t r = 0; r < kStacked; ++r) {
          const Word* row = rows.at(top + r * p.stride[1] + h);
          const Words words = columns[tap % p.kernel[2]].of(row, row, p.stride[2]);
          sum[0][r] += splat(w[tap]) * first_of_pair(words);
          sum[1][r] += splat(next[tap]) * second_of_pair(words);
        }
      }
    }
  }

  // Computes the convolution, one work item for every two groups of an image.
  static void run(const ConvolutionProblem& p, const void* x, const float* w, const float* bias,
                  Residual<float> residual, Outputs<float> to, Parallel& parallel, void* memory) {
    const int64_t taps = p.taps(), pairs = p.groups / 2, width = p.kernel[2], step = kStacked * kRowsOfVector;
    const int64_t blocks = ceil_div(p.out[2], kColumns);
    std::vector<TapColumns> columns;
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t k = 0; k < width; ++k) {
        columns.emplace_back(block * kColumns * p.stride[2] + k * p.dilation[2] - p.pad[2], p.in[2]);
      }
    }
    const int64_t slot = pair_slot(p);
    parallel_for(parallel, p.N * pairs, [&](int64_t item, size_t worker) {
      Word* zeros = static_cast<Word*>(memory) + static_cast<int64_t>(worker) * slot;
      std::memset(zeros, 0, static_cast<size_t>(p.in[2]) * sizeof(Word));
      const Word* image = pair_at(p, x, item, zeros + round_up(p.in[2], L));
      const Rows rows = {image, zeros, p.in[1], p.in[2]};
      const int64_t n = item / pairs, c = item % pairs * 2;
      const float* weights = w + c * taps;
      Pixels pixels[kStacked];
      const Finish<float, true> finish = Finish<float, true>(p, bias, residual, to).of_image(n).at(c, pixels);
      const StoreNchw2c<false> alone(finish);
      const bool nchw2c_only = StoreNchw2c<false>::stores(finish);
      alignas(64) float o[2 * kStacked * L];
      for (int64_t y = 0; y < p.out[1]; y += step) {
        const int64_t here = std::min(kStacked, ceil_div(p.out[1] - y, kRowsOfVector));
        for (int64_t block = 0; block < blocks; ++block) {
          const int64_t count = std::min(kColumns, p.out[2] - block * kColumns);
          for (int64_t r = 0; r < here; ++r) {
            const int64_t row = y + r * kRowsOfVector;
            const bool two = kNarrow && row + 1 < p.out[1];
            uint32_t mask = (1u << count) - 1;
            if (two) mask |= mask << kColumns;
            pixels[r] = {mask, static_cast<int32_t>(two ? 2 * count : count),
                         row * p.out[2] + block * kColumns};
          }
          Vec sum[2][kStacked] = {};
          add(p, rows, y * p.stride[1] - p.pad[1], columns.data() + block * width, weights, weights + taps,
              sum);
          if (nchw2c_only) {
#pragma GCC unroll 4
            for (int64_t r = 0; r < kStacked; ++r) {
              if (r < here) alone(0, r, sum[0][r] + splat(finish.bias[0]), sum[1][r] + splat(finish.bias[1]));
            }
            continue;
          }
#pragma GCC unroll 4
          for (int64_t r = 0; r < kStacked; ++r) {
            if (r >= here) continue;
            store_aligned(o + r * L, sum[0][r]);
            store_aligned(o + (here + r) * L, sum[1][r]);
          }
          finish.finish_sums(2, here, o, false);
        }
      }
    });
  }
};

// Returns the offset of the interleaved weights (SamePlanes::pack), in floats. The plain weights come first, then a
// vector of padding for reads beyond their end.
int64_t interleaved_weights(const ConvolutionProblem& p) {
  return round_up(p.y_channels() * p.taps() + L, L);
}

#if defined(__AVX512F__)

using WordPairs = uint64_t __attribute__((vector_size(L * 4)));

// Interleaves 16-bit values of two vectors, from the first or the second half of each group of four words. A word of
// `a` or `b` has two channels of a pixel. A word of the result has one channel of `a` and the same channel of `b`; the
// words of the two channels alternate.
template <int kHalf>
Words interleaved(Words a, Words b) {
  const Shorts x = (Shorts)a, y = (Shorts)b;
  if constexpr (kHalf == 0) {
    return (Words)__builtin_shufflevector(x, y, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16,
                                          48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59);
  } else {
    return (Words)__builtin_shufflevector(x, y, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47,
                                          20, 52, 21, 53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63);
  }
}

// Indices that select one channel (0 or 1) from the sums of interleaved<0> and interleaved<1>, in the order of the
// pixels.
template <int kChannel>
struct OfChannel {
  static constexpr int at(int i) { return i / 4 * 4 + i % 2 * 2 + kChannel + (i % 4 < 2 ? 0 : L); }
};

// A window of kKernel x kKernel taps, where kKernel is odd, padded so that y is as large as x. Taps are multiplied two
// at a time: adjacent taps of a row and, in the last column, taps of two rows. The last tap is multiplied alone. A
// vector has consecutive pixels of a plane, which may be in several rows. Each row of the window is read once, and
// shifts produce its other columns. Masks clear words outside the row or the plane.
template <int kKernel>
struct SamePlanes {
  static constexpr int64_t kTaps = kKernel * kKernel, kTapPairs = (kTaps + 1) / 2;

  // Masks of a vector. For each row of the window: the words inside the plane. For each column of the window: the
  // pixels for which this column is inside the row.
  struct Masks {
    std::array<Lanes, kKernel> inside, columns;
  };

  // Returns the masks of the vectors of a plane and of one more vector, because the next vector is always read ahead.
  static std::vector<Masks> masks_of(const ConvolutionProblem& p) {
    const int64_t size = p.out_size(), width = p.out[2];
    std::vector<Masks> masks(static_cast<size_t>(ceil_div(size, L) + 1));
    int64_t begin = -p.pad[1] * width - p.pad[2];  // the first word of the window's first row
    for (Masks& of : masks) {
      of.columns.fill(0xffff);
      for (int64_t h = 0; h < kKernel; ++h) {
        const int64_t from = std::clamp<int64_t>(-begin - h * width, 0, L),
                      until = std::clamp<int64_t>(size - begin - h * width, from, L);
        of.inside[static_cast<size_t>(h)] = static_cast<Lanes>((1u << until) - (1u << from));
      }
      begin += L;
    }
    for (int64_t k = 0; k < kKernel; ++k) {
      const int64_t right = k - p.pad[2];  // distance from a pixel to the word for this column
      const int64_t from = right < 0 ? 0 : std::max<int64_t>(width - right, 0);
      const int64_t until = right < 0 ? std::min(-right, width) : width;
      for (int64_t row = 0; row < size; row += width) {
        for (int64_t i = row + from; i < row + until; ++i) {
          masks[static_cast<size_t>(i / L)].columns[static_cast<size_t>(k)] &=
              static_cast<Lanes>(~(1u << i % L));
        }
      }
    }
    return masks;
  }

  template <int kColumn, class F>
  [[gnu::always_inline]] static void each_column(const F& f) {
    f(std::integral_constant<int, kColumn>());
    if constexpr (kColumn + 1 < kKernel) each_column<kColumn + 1>(f);
  }
  // Calls f(first tap, second tap) for all pairs of taps in the order of summation. The second tap of the last call is
  // -1: none.
  template <class F>
  [[gnu::always_inline]] static void each_tap_pair(const F& f) {
#pragma GCC unroll 5
    for (int h = 0; h < kKernel; ++h) {
#pragma GCC unroll 2
      for (int k = 0; k + 1 < kKernel; k += 2) f(h * kKernel + k, h * kKernel + k + 1);
      const int last = h * kKernel + kKernel - 1;
      if (h % 2 == 1) f(last - kKernel, last);
    }
    f(kTaps - 1, -1);
  }

  // Packs w [2][kTaps] to `to` [kTapPairs]: each pair of taps of both channels, interleaved.
  static void pack(const float* w, uint64_t* to) {
    each_tap_pair([&](int first, int second) {
      uint64_t words = 0;
      for (const int64_t channel : {1, 0}) {
        uint32_t bits[2] = {};
        std::memcpy(bits, w + channel * kTaps + first, sizeof(float));
        if (second >= 0) std::memcpy(bits + 1, w + channel * kTaps + second, sizeof(float));
        words = words << 32 | bits[0] >> 16 | bits[1];
      }
      *to++ = words;
    });
  }

  static void run(const ConvolutionProblem& p, const void* x, const float* w, const float* bias,
                  Residual<float> residual, Outputs<float> to, Parallel& parallel, void* memory) {
    const int64_t pairs = p.groups / 2, slot = pair_slot(p), width = p.in[2];
    const auto* packed = reinterpret_cast<const uint64_t*>(w + interleaved_weights(p));
    const std::vector<Masks> masks = masks_of(p);
    const auto vectors = static_cast<int64_t>(masks.size()) - 1;
    const Finish<float, true> images(p, bias, residual, to);
    const StoreNchw2c<false> alone(images);
    const bool nchw2c_only = StoreNchw2c<false>::stores(images);
    parallel_for(parallel, p.N * pairs, [&](int64_t item, size_t worker) {
      const Word* image =
          pair_at(p, x, item, static_cast<Word*>(memory) + static_cast<int64_t>(worker) * slot);
      const int64_t n = item / pairs, c = item % pairs * 2;
      Words weights[kTapPairs];
      for (int64_t i = 0; i < kTapPairs; ++i) {
        weights[i] = (Words)(packed[c / 2 * kTapPairs + i] - WordPairs{});
      }
      Pixels pixels;
      const Finish<float, true> finish =
          Finish<float, true>(p, bias, residual, to).of_image(n).at(c, &pixels);
      const float* from = reinterpret_cast<const float*>(image) - p.pad[1] * width - p.pad[2];
      Vec here[kKernel], next[kKernel];
      const auto read = [&](const Masks& mask) {
#pragma GCC unroll 5
        for (int h = 0; h < kKernel; ++h) {
          next[h] = load_lanes(from + h * width, mask.inside[static_cast<size_t>(h)]);
        }
        from += L;
      };
      read(masks[0]);
      Vec begin = {};
      if (nchw2c_only) {
        for (int i = 0; i < L; ++i) begin[i] = bias[c + i % 2];
      }
      alignas(64) float o[2 * L];
      for (int64_t v = 0; v < vectors; ++v) {
        std::copy_n(next, kKernel, here);
        read(masks[static_cast<size_t>(v + 1)]);
        const Masks& mask = masks[static_cast<size_t>(v)];
        Vec shifted[kKernel][kKernel];
        each_column<0>([&](auto column) {
          constexpr int k = column;
#pragma GCC unroll 5
          for (int h = 0; h < kKernel; ++h) {
            shifted[h][k] = lanes_from<k>(here[h], next[h], mask.columns[k]);
          }
        });
        const auto words = [&](int tap) {
          return tap < 0 ? Words{} : (Words)shifted[tap / kKernel][tap % kKernel];
        };
        Vec sum[2] = {begin, begin};
        int index = 0;
        each_tap_pair([&](int first, int second) {
          const Words a = words(first), b = words(second);
          sum[0] = Bfloat16Pairs::multiply_add(interleaved<0>(a, b), weights[index], sum[0]);
          sum[1] = Bfloat16Pairs::multiply_add(interleaved<1>(a, b), weights[index++], sum[1]);
        });
        const int64_t count = std::min(L, p.out_size() - v * L);
        if (nchw2c_only) {
          // Alternating two words of sum[0] with two words of sum[1] restores the order of the pixels.
          const auto both =
              (WordPairs)pack_adjacent(alone.within_bounds(sum[0]), alone.within_bounds(sum[1]));
          const auto words_of_y = (Words)__builtin_shufflevector(both, both, 0, 4, 1, 5, 2, 6, 3, 7);
          store_words(to.nchw2c + item * p.out_size() + v * L, words_of_y, count);
          continue;
        }
        pixels = {(1u << count) - 1, static_cast<int32_t>(count), v * L};
        store_aligned(o, shuffle(sum[0], sum[1], OfChannel<0>()));
        store_aligned(o + L, shuffle(sum[0], sum[1], OfChannel<1>()));
        finish.finish_sums(2, 1, o, false);
      }
    });
  }
};

#endif

// Returns the fastest function for the problem. If y has several rows of at most L / 2 columns, a vector holds two
// rows.
template <int kKernelH, int kKernelW, int kStride>
auto filter_of(const ConvolutionProblem& p) {
#if defined(__AVX512F__)
  if constexpr (kStride == 1) {
    if (p.in == p.out) return SamePlanes<kKernelH>::run;
  }
  if (p.out[2] <= L / 2 && p.out[1] > 1) return Filter<kKernelH, kKernelW, kStride, true>::run;
#else
  static_cast<void>(p);
#endif
  return Filter<kKernelH, kKernelW, kStride, false>::run;
}

}  // namespace

size_t depthwise_weights(const ConvolutionProblem& p) {
  const int64_t interleaved = p.bfloat16 ? p.y_channels() / 2 * (p.taps() + 1) : 0;
  return static_cast<size_t>(interleaved_weights(p) + interleaved) * sizeof(float);
}

template <class T>
void depthwise_prepare(const ConvolutionProblem& p, const T* w, float* weights) {
  const int64_t count = p.y_channels() * p.taps();
  for (int64_t i = 0; i < count; i += L) {
    const Vec values = load_range(w + i, 0, count - i);
    store(weights + i, p.bfloat16 ? rounded(values) : values);
  }
#if defined(__AVX512F__)
  if (!p.bfloat16 || p.kernel[1] != p.kernel[2]) return;
  auto* to = reinterpret_cast<uint64_t*>(weights + interleaved_weights(p));
  const int64_t tap_pairs = (p.taps() + 1) / 2;
  for (int64_t pair = 0; pair < p.y_channels() / 2; ++pair, to += tap_pairs) {
    if (p.kernel[1] == 3) SamePlanes<3>::pack(weights + 2 * pair * p.taps(), to);
    if (p.kernel[1] == 5) SamePlanes<5>::pack(weights + 2 * pair * p.taps(), to);
  }
#endif
}

size_t depthwise_pairs_workspace(const ConvolutionProblem& p, size_t workers) {
  return workers * static_cast<size_t>(pair_slot(p)) * sizeof(Word);
}

void depthwise_pairs(const ConvolutionProblem& p, const void* x, const float* weights, const float* bias,
                     Residual<float> residual, Outputs<float> to, Parallel& parallel, void* memory) {
  const int64_t kernel = p.kernel[1], stride = p.stride[1];
  auto run = Filter<0, 0, 0, false>::run;
  if (kernel == p.kernel[2] && stride == p.stride[2] && p.dilation[1] == 1 && p.dilation[2] == 1) {
    if (kernel == 3 && stride == 1) run = filter_of<3, 3, 1>(p);
    if (kernel == 3 && stride == 2) run = filter_of<3, 3, 2>(p);
    if (kernel == 5 && stride == 1) run = filter_of<5, 5, 1>(p);
    if (kernel == 5 && stride == 2) run = filter_of<5, 5, 2>(p);
  }
  run(p, x, weights, bias, residual, to, parallel, memory);
}

GRAPHOPT_INSTANTIATE(depthwise_prepare)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
