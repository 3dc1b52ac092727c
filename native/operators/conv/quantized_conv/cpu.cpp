// An int8 convolution as a GEMM without im2col: in channels last, the elements of one row of a window are adjacent in
// X. The columns of a register tile are channels of Y. Its rows are adjacent pixels of Y, whose windows have a constant
// stride.
//
// X is copied if it has padding, if its bytes are signed, if words have 16-bit elements (without VNNI), or if a segment
// of a window is not a multiple of a word. The padding of the copy has the zero point. Each channel then has one
// correction for all pixels:
//   sum (x - x_zero) w = sum x w - x_zero sum w
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/microkernels/packing.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/quantized_conv/depthwise_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

using Problem = ConvolutionProblem;

bool is_depthwise(const Problem& p) { return p.groups > 1; }

// --- Word formats: 32-bit words of kInWord elements of X of type Value, and of their weights

struct FourBytes {
  using Value = uint8_t;
  static constexpr int64_t kInWord = 4;
  static Words multiply_add(Words x, Words w, Words sum) {
#if defined(__AVX2__)
    return Fours::multiply_add(x, w, sum);
#else
    return Singles::multiply_add(x, w, sum);
#endif
  }
};

struct TwoShorts {
  using Value = uint16_t;
  static constexpr int64_t kInWord = 2;
  static Words multiply_add(Words x, Words w, Words sum) {
#if defined(__AVX2__)
    return Pairs::multiply_add(x, w, sum);
#else
    sum += (x & 0xffffu) * (Words)((IntVec)(w << 16) >> 16);
    return sum + (x >> 16) * (Words)((IntVec)w >> 16);
#endif
  }
};

template <class F>
auto with_format(const F& f) {
#if defined(__AVX2__)
  if (has_vnni()) return f(FourBytes());
#endif
  return f(TwoShorts());
}

// --- Weights

// The division of a window into segments, whose elements are adjacent in X.
struct Segments {
  int64_t rows, columns;  // rows of the window, and segments of a row
  int64_t elements;       // of one segment

  explicit Segments(const Problem& p)
      : rows(p.kernel[1]),
        columns(p.dilation[2] == 1 ? 1 : p.kernel[2]),
        elements(p.kernel[2] / columns * p.C) {}
  template <class E>
  int64_t steps() const {
    return ceil_div(elements, E::kInWord);
  }
  template <class E>
  int64_t all_steps() const {
    return rows * columns * steps<E>();
  }
};

// Returns the number of columns of the packed weights, including padding. The sums of their weights follow the packed
// words.
int64_t padded_columns(const Problem& p) {
  return is_depthwise(p) ? round_up(p.groups, kSpan) : round_up(p.M, kPanelWidth);
}
int64_t packed_words(const Problem& p) {
  if (is_depthwise(p)) {
    return with_byte_format([&](auto format) { return depthwise_block_words<decltype(format)>(p); }) *
           (padded_columns(p) / kSpan);
  }
  return with_format(
      [&](auto format) { return panels_words(Segments(p).all_steps<decltype(format)>(), p.M); });
}

// Returns the channel of Y of a column; at least p.y_channels() if there is none.
int64_t channel_of_column(const Problem& p, int64_t column) {
  if (!is_depthwise(p)) return column;
  const int64_t at = column % kSpan;
  return first_channel(p, column / kSpan) + column_of_word(at / L, at % L);
}

template <class E>
void pack_panels(const Problem& p, const int8_t* w, Word* words) {
  const Segments segments(p);
  const int64_t KH = p.kernel[1], KW = p.kernel[2], taps = KW / segments.columns;
  auto* to = reinterpret_cast<typename E::Value*>(words);
  for (int64_t panel = 0; panel * kPanelWidth < p.M; ++panel) {
    const int64_t width = panel_vectors(p.M, panel) * L;
    for (int64_t segment = 0; segment < segments.rows * segments.columns; ++segment) {
      const int64_t row = segment / segments.columns, column = segment % segments.columns * taps;
      for (int64_t k = 0; k < segments.steps<E>() * E::kInWord; k += E::kInWord) {
        for (int64_t n = panel * kPanelWidth; n < panel * kPanelWidth + width; ++n) {
          for (int64_t i = k; i < k + E::kInWord; ++i, ++to) {
            const int64_t c = i % p.C, tap = column + i / p.C;
            const bool exists = n < p.M && i < segments.elements;
            const int8_t value = exists ? w[((n * p.C + c) * KH + row) * KW + tap] : int8_t{0};
            *to = static_cast<typename E::Value>(value);
          }
        }
      }
    }
  }
}

// --- X

// The images that the windows read: X or its copy with padding.
template <class E>
struct Images {
  int64_t H, W;  // with padding; all windows are inside
  bool copied;
  const typename E::Value* x = nullptr;

  Images(const Problem& p, bool is_signed)
      : H((p.OH() - 1) * p.stride[1] + p.span(1)), W((p.OW() - 1) * p.stride[2] + p.span(2)) {
    const bool padded = p.pad[1] > 0 || p.pad[2] > 0 || H > p.H() || W > p.W();
    copied = padded || is_signed || sizeof(*x) > 1 || Segments(p).elements % E::kInWord != 0;
    if (!copied) H = p.H(), W = p.W();
  }
  // Returns the elements of the copy, including padding that the last word reads.
  int64_t elements(const Problem& p) const { return copied ? p.N * H * W * p.C + E::kInWord : 0; }
};

// Copies row i of all images.
template <class E>
void copy_row(const Problem& p, const ConvQuantization& q, const Images<E>& images, const uint8_t* x,
              int64_t i, typename E::Value* to) {
  const int64_t n = i / images.H, row = i % images.H - p.pad[1];
  const auto zero = static_cast<typename E::Value>(q.x_zero);
  const bool inside = row >= 0 && row < p.H();
  const int64_t before = inside ? std::min(p.pad[2], images.W) : images.W;
  const int64_t count = inside ? std::max<int64_t>(std::min(p.W(), images.W - before), 0) : 0;
  to = std::fill_n(to, before * p.C, zero);
  if (count > 0) {
    const uint8_t* from = x + (n * p.H() + row) * p.W() * p.C;
    if (sizeof(*to) == 1 && !q.is_signed) {
      std::memcpy(to, from, static_cast<size_t>(count * p.C));
    } else {
      const auto flip = static_cast<uint8_t>(q.is_signed ? 128 : 0);
#pragma GCC ivdep
      for (int64_t j = 0; j < count * p.C; ++j) to[j] = static_cast<uint8_t>(from[j] ^ flip);
    }
    to += count * p.C;
  }
  std::fill_n(to, (images.W - before - count) * p.C, zero);
}

// Adds 128 to n int8 elements of X, which makes them uint8.
void flip_bytes(const uint8_t* x, int64_t n, uint8_t* to) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(x[i] ^ 128);
}

// --- Multiplication

// A tile: `rows` adjacent pixels of Y.
template <class E>
struct Tile {
  const typename E::Value* x;  // the window of the first pixel
  int64_t pixel;               // elements between the windows of two pixels
  int64_t row, column;         // elements of X between segments of adjacent rows, and of adjacent columns
  Segments segments;
  uint8_t* y;
  int64_t y_stride;
};

template <class E, int kVectors>
struct MultiplyTile {
  template <int kRows>
  struct Of {
    static void run(const Tile<E>& tile, const Word* v, const Requantization& requantize, int64_t n,
                    int64_t here) {
      Words sum[kRows][kVectors];
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) {
          sum[i][j] = *reinterpret_cast<const UnalignedWords*>(requantize.offsets + n + j * L);
        }
      }
      const int64_t steps = tile.segments.template steps<E>(), pixel = tile.pixel;
      for (int64_t row = 0; row < tile.segments.rows; ++row) {
        for (int64_t column = 0; column < tile.segments.columns; ++column) {
          // Three rows share a pointer, because there are too few registers for one pointer for each row.
          const typename E::Value* s[ceil_div(kRows, 3)];
#pragma GCC unroll 5
          for (int i = 0; i < kRows; i += 3) {
            s[i / 3] = tile.x + row * tile.row + column * tile.column + i * pixel;
          }
          for (int64_t step = 0; step < steps; ++step, v += kVectors * L) {
            Words w[kVectors];
#pragma GCC unroll 2
            for (int j = 0; j < kVectors; ++j) w[j] = *reinterpret_cast<const AlignedWords*>(v + j * L);
#pragma GCC unroll 14
            for (int i = 0; i < kRows; ++i) {
              using UnalignedWord = uint32_t __attribute__((aligned(1), may_alias));
              const Words x = *reinterpret_cast<const UnalignedWord*>(s[i / 3] + i % 3 * pixel) - Words{};
#pragma GCC unroll 2
              for (int j = 0; j < kVectors; ++j) sum[i][j] = E::multiply_add(x, w[j], sum[i][j]);
            }
#pragma GCC unroll 5
            for (int i = 0; i < kRows; i += 3) s[i / 3] += E::kInWord;
          }
        }
      }
      if (here >= kVectors * L) {
        store<false>(tile, sum, requantize, n, here);
      } else {
        store<true>(tile, sum, requantize, n, here);
      }
    }

   private:
    template <bool kPart>
    static void store(const Tile<E>& tile, const Words (&sum)[kRows][kVectors],
                      const Requantization& requantize, int64_t n, int64_t here) {
      const int64_t y_stride = tile.y_stride;
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) {
        const VectorRequantization bytes_of(requantize, n + j * L);
        uint8_t* y = tile.y + j * L;
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i, y += y_stride)
          store_bytes<kPart>(y, bytes_of(sum[i][j]), here - j * L);
      }
    }
  };
};

// The tiles of Y. A line is a row of Y, or all pixels if window and strides are 1. The windows of a line have a
// constant stride.
struct Tiles {
  int64_t lines, pixels;  // of each line
  int64_t per_line;

  explicit Tiles(const Problem& p) {
    const bool one_line = p.taps() == 1 && p.stride[1] == 1 && p.stride[2] == 1;
    lines = one_line ? 1 : p.N * p.OH();
    pixels = one_line ? p.N * p.OH() * p.OW() : p.OW();
    per_line = ceil_div(pixels, kMaxRows);
  }
  int64_t count() const { return lines * per_line; }
  int64_t first_pixel(int64_t tile) const { return pixels * (tile % per_line) / per_line; }
  int64_t rows(int64_t tile) const { return pixels * (tile % per_line + 1) / per_line - first_pixel(tile); }
};

template <class E>
void multiply(const Problem& p, const Images<E>& images, const Tiles& tiles, int64_t tile, int64_t panel,
              const Word* weights, const Requantization& requantize, uint8_t* y) {
  const Segments segments(p);
  const int64_t line = tile / tiles.per_line, pixel = tiles.first_pixel(tile), rows = tiles.rows(tile);
  const int64_t image = tiles.lines == 1 ? 0 : line / p.OH(), row = tiles.lines == 1 ? 0 : line % p.OH();
  const int64_t n = panel * kPanelWidth, vectors = panel_vectors(p.M, panel);
  const Tile<E> at = {
      images.x + ((image * images.H + row * p.stride[1]) * images.W + pixel * p.stride[2]) * p.C,
      p.stride[2] * p.C,
      p.dilation[1] * images.W * p.C,
      p.dilation[2] * p.C,
      segments,
      y + (line * tiles.pixels + pixel) * p.M + n,
      p.M};
  const Word* v = panel_at(weights, segments.all_steps<E>(), panel);
  if (vectors == kPanel) {
    of_rows<MultiplyTile<E, kPanel>::template Of>(rows)(at, v, requantize, n, p.M - n);
  } else {
    of_rows<MultiplyTile<E, 1>::template Of>(rows)(at, v, requantize, n, p.M - n);
  }
}

// --- A call

// The workspace of a call.
struct Scratch {
  int32_t* offsets;
  float *factors, *addends;
  uint8_t* padding;  // a row of zero points
  void* copy;

  Scratch(const Problem& p, bool is_signed, Workspace& workspace)
      : offsets(workspace.take<int32_t>(padded_columns(p))),
        factors(workspace.take<float>(padded_columns(p))),
        addends(workspace.take<float>(padded_columns(p))),
        padding(workspace.take<uint8_t>(is_depthwise(p) ? depthwise_row_bytes(p) : 0)) {
    if (is_depthwise(p)) {
      copy = workspace.take<uint8_t>(is_signed ? p.N * p.in_size() * p.groups : 0);
    } else {
      copy = with_format([&](auto format) -> void* {
        using E = decltype(format);
        return workspace.take<typename E::Value>(Images<E>(p, is_signed).elements(p));
      });
    }
  }

  Requantization requantization(const Problem& p, const ConvQuantization& q, const int32_t* sums) const {
    for (int64_t column = 0; column < padded_columns(p); ++column) {
      const int64_t channel = channel_of_column(p, column);
      const bool exists = channel < p.y_channels();
      offsets[column] =
          static_cast<int32_t>(-static_cast<uint32_t>(q.x_zero) * static_cast<uint32_t>(sums[column]));
      factors[column] = exists ? q.x_scale * q.w_scale[channel] / q.y_scale : 0.0f;
      addends[column] = exists ? static_cast<float>(q.bias[channel]) * factors[column] : 0.0f;
    }
    const Limits limits(p.act, q);
    return {offsets, factors, addends, limits.least, limits.most, q.y_zero - (q.is_signed ? 128 : 0)};
  }
};

// Returns a loop that calls run(i) for i in [0, count), `size` times in each item.
template <class F>
Loop blocks(int64_t count, int64_t size, const F& run) {
  return {ceil_div(count, size), [=](int64_t item, size_t) {
            for (int64_t i = item * size; i < std::min(count, (item + 1) * size); ++i) run(i);
          }};
}

constexpr int64_t kItemBytes = 1 << 14;  // bytes of X or Y in a work item that copies, or computes depthwise

template <class E>
void run_depthwise(const Problem& p, const ConvQuantization& q, const uint8_t* x, const Word* w,
                   const Scratch& scratch, const Requantization& requantize, uint8_t* y, Parallel& parallel) {
  const int64_t elements = p.N * p.in_size() * p.groups, items = ceil_div(elements, kItemBytes);
  std::vector<Loop> loops;
  std::fill_n(scratch.padding, depthwise_row_bytes(p), static_cast<uint8_t>(q.x_zero));
  if (q.is_signed) {
    auto* copy = static_cast<uint8_t*>(scratch.copy);
    const uint8_t* from = x;
    loops.push_back({items, [=](int64_t item, size_t) {
                       const int64_t at = item * kItemBytes;
                       flip_bytes(from + at, std::min(kItemBytes, elements - at), copy + at);
                     }});
    x = copy;
  }
  const auto run = pick_depthwise_row<E>(p);
  const int64_t row_bytes = std::max<int64_t>(p.OW() * p.groups, 1);
  loops.push_back(blocks(p.N * p.OH(), ceil_div(kItemBytes, row_bytes), [=, &p](int64_t line) {
    const DepthwiseRow row(p, x, scratch.padding, line);
    for (int64_t block = 0; block * kSpan < p.groups; ++block) {
      run(row, requantize, w + block * depthwise_block_words<E>(p), block, y + line * p.OW() * p.groups);
    }
  }));
  parallel_loops(parallel, loops);
}

template <class E>
void run_panels(const Problem& p, const ConvQuantization& q, const uint8_t* x, const Word* w,
                const Scratch& scratch, const Requantization& requantize, uint8_t* y, Parallel& parallel) {
  Images<E> images(p, q.is_signed);
  std::vector<Loop> loops;
  if (images.copied) {
    auto* copy = static_cast<typename E::Value*>(scratch.copy);
    const int64_t row = images.W * p.C;
    std::fill_n(copy + images.elements(p) - E::kInWord, E::kInWord, typename E::Value{0});
    loops.push_back(
        blocks(p.N * images.H, ceil_div(kItemBytes, std::max<int64_t>(row, 1)),
               [=, &p, &q, &images](int64_t i) { copy_row<E>(p, q, images, x, i, copy + i * row); }));
    images.x = copy;
  } else if constexpr (sizeof(typename E::Value) == 1) {
    images.x = x;
  }
  // A work item multiplies a chunk of tiles by one panel. The windows of a chunk fit in the second-level cache.
  const Tiles tiles(p);
  const int64_t panels = ceil_div(p.M, kPanelWidth), workers = static_cast<int64_t>(parallel.workers());
  const int64_t bytes = p.N * images.H * images.W * p.C * static_cast<int64_t>(sizeof(typename E::Value));
  const int64_t fewest = workers == 1 ? 1 : ceil_div(4 * workers, panels);
  const int64_t chunks =
      std::min(std::max(ceil_div(bytes, kChunkBytes / 2), fewest), std::max<int64_t>(tiles.count(), 1));
  loops.push_back({chunks * panels, [=, &p, &images](int64_t item, size_t) {
                     const int64_t chunk = item / panels;
                     for (int64_t tile = tiles.count() * chunk / chunks;
                          tile < tiles.count() * (chunk + 1) / chunks; ++tile) {
                       multiply<E>(p, images, tiles, tile, item % panels, w, requantize, y);
                     }
                   }});
  parallel_loops(parallel, loops);
}

}  // namespace

template <class T>
size_t quantized_conv_weights(const Problem& p) {
  return static_cast<size_t>(packed_words(p) + padded_columns(p)) * sizeof(Word);
}

template <class T>
void quantized_conv_prepare(const Problem& p, const int8_t* w, void* weights) {
  auto* words = static_cast<Word*>(weights);
  if (is_depthwise(p)) {
    with_byte_format([&](auto format) { pack_depthwise<decltype(format)>(p, w, words); });
  } else {
    with_format([&](auto format) { pack_panels<decltype(format)>(p, w, words); });
  }
  auto* sums = reinterpret_cast<int32_t*>(words + packed_words(p));
  const int64_t of_channel = p.C * p.taps();
  for (int64_t column = 0; column < padded_columns(p); ++column) {
    const int64_t channel = channel_of_column(p, column);
    sums[column] = 0;
    for (int64_t i = 0; i < of_channel && channel < p.y_channels(); ++i)
      sums[column] += w[channel * of_channel + i];
  }
}

template <class T>
size_t quantized_conv_workspace(const Problem& p, bool is_signed) {
  Workspace workspace(nullptr);
  Scratch(p, is_signed, workspace);
  return workspace.bytes();
}

template <class T>
void quantized_conv(const Problem& p, const ConvQuantization& q, const T* x, const void* weights, T* y,
                    Parallel& parallel, void* memory) {
  if (p.N * p.out_size() * p.y_channels() <= 0) return;
  Workspace workspace(memory);
  const Scratch scratch(p, q.is_signed, workspace);
  const auto* words = static_cast<const Word*>(weights);
  const Requantization requantize =
      scratch.requantization(p, q, reinterpret_cast<const int32_t*>(words + packed_words(p)));
  if (is_depthwise(p)) {
    with_byte_format([&](auto format) {
      run_depthwise<decltype(format)>(p, q, x, words, scratch, requantize, y, parallel);
    });
  } else {
    with_format(
        [&](auto format) { run_panels<decltype(format)>(p, q, x, words, scratch, requantize, y, parallel); });
  }
}

template decltype(quantized_conv_weights<uint8_t>) quantized_conv_weights<uint8_t>;
template decltype(quantized_conv_prepare<uint8_t>) quantized_conv_prepare<uint8_t>;
template decltype(quantized_conv_workspace<uint8_t>) quantized_conv_workspace<uint8_t>;
template decltype(quantized_conv<uint8_t>) quantized_conv<uint8_t>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
