// Depthwise convolution of bytes in channels last. For kernel files only (see cpu/isa.h).
//
// A word has four bytes of one channel: its elements in one column of four rows. Interleaving rows of X produces the
// words of a column, which are used for all columns of the window. A block has kSpan channels in four vectors.
#pragma once

#include "cpu/microkernels/byte_gemm.h"
#include "cpu/microkernels/bytes.h"
#include "operators/conv/quantized_conv/requantize_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Returns the first channel of a block. The last block ends with the last channel and may overlap the previous block.
// All blocks are therefore complete if there are at least kSpan channels.
inline int64_t first_channel(const ConvolutionProblem& p, int64_t block) {
  return std::max<int64_t>(std::min(block * kSpan, p.groups - kSpan), 0);
}

// Returns the bytes of the row of zero points that replaces rows of X in the padding. Blocks may read beyond the row.
inline int64_t depthwise_row_bytes(const ConvolutionProblem& p) { return p.W() * p.groups + kSpan; }

// The rows of X that a row of Y reads.
struct DepthwiseRow {
  const ConvolutionProblem& p;
  const uint8_t* padding;
  std::vector<const uint8_t*>
      rows;                // their number is a multiple of kBytes; rows below the window have zero weights
  bool exceeds_x = false;  // a vector from the last pixel of one of the rows on ends beyond X

  // `line` is the index of the row of Y in all images.
  DepthwiseRow(const ConvolutionProblem& problem, const uint8_t* x, const uint8_t* padding_row, int64_t line)
      : p(problem),
        padding(padding_row),
        rows(static_cast<size_t>(round_up(p.kernel[1], kBytes)), padding_row) {
    const int64_t image = line / p.OH(), first = line % p.OH() * p.stride[1] - p.pad[1];
    const int64_t row = p.W() * p.groups;
    for (int64_t i = 0; i < p.kernel[1]; ++i) {
      const int64_t at = first + i * p.dilation[1];
      if (at < 0 || at >= p.H()) continue;
      rows[static_cast<size_t>(i)] = x + (image * p.H() + at) * row;
      exceeds_x = exceeds_x || (p.N * p.H() - image * p.H() - at) * row < row - p.groups + kSpan;
    }
  }
  // Returns whether these columns of X are inside X, and blocks of `here` channels can be loaded as full vectors.
  bool is_inside(int64_t column, int64_t columns, int64_t here) const {
    return column >= 0 && column + columns <= p.W() && (here == kSpan || !exceeds_x);
  }
  // Returns `here` channels from `channel` on, of one column of one row.
  template <bool kInside>
  ByteVec load(const uint8_t* row, int64_t column, int64_t channel, int64_t here) const {
    const uint8_t* at = row + column * p.groups + channel;
    if (!kInside && (column < 0 || column >= p.W())) at = padding;
    if (kInside || here == kSpan || !exceeds_x) return *reinterpret_cast<const UnalignedByteVec*>(at);
    alignas(64) uint8_t part[kSpan] = {};
    std::memcpy(part, at, static_cast<size_t>(here));
    return *reinterpret_cast<const UnalignedByteVec*>(part);
  }
};

inline int64_t depthwise_groups(const ConvolutionProblem& p) { return ceil_div(p.kernel[1], kBytes); }
// Returns the words of the weights of one block: [column of the window][group of four rows][plane][part][L]. A plane is
// one of the four vectors of a block; byte_gemm.h defines parts.
template <class E>
int64_t depthwise_block_words(const ConvolutionProblem& p) {
  return p.kernel[2] * depthwise_groups(p) * kPlanes * E::kParts * L;
}

template <class E>
void pack_depthwise(const ConvolutionProblem& p, const int8_t* w, Word* words) {
  const int64_t KH = p.kernel[1], KW = p.kernel[2];
  for (int64_t block = 0; block * kSpan < p.groups; ++block) {
    const int64_t first = first_channel(p, block);
    for (int64_t column = 0; column < KW; ++column) {
      for (int64_t group = 0; group < depthwise_groups(p); ++group) {
        for (int64_t plane = 0; plane < kPlanes; ++plane) {
          alignas(64) uint8_t bytes[kSpan] = {};
          for (int64_t lane = 0; lane < L; ++lane) {
            const int64_t channel = first + column_of_word(plane, lane);
            for (int64_t i = 0; i < std::min(kBytes, KH - group * kBytes) && channel < p.groups; ++i) {
              bytes[lane * kBytes + i] =
                  static_cast<uint8_t>(w[(channel * KH + group * kBytes + i) * KW + column]);
            }
          }
          const Words all = *reinterpret_cast<const AlignedWords*>(bytes);
          for (int part = 0; part < E::kParts; ++part, words += L) {
            *reinterpret_cast<AlignedWords*>(words) = E::column_part(all, part);
          }
        }
      }
    }
  }
}

// Computes kPixels adjacent pixels of one block of channels. The window has stride kStride and kColumns columns, or any
// stride, columns and dilation if kColumns is 0 (then kPixels is 1).
template <class E, int kPixels, int kStride, int kColumns, bool kInside>
void depthwise_pixels(const DepthwiseRow& row, const Requantization& requantize, const Word* w, int64_t x,
                      int64_t block, int64_t here, uint8_t* y) {
  const ConvolutionProblem& p = row.p;
  const int64_t channel = first_channel(p, block);
  Words sum[kPixels][kPlanes];
#pragma GCC unroll 4
  for (int i = 0; i < kPixels; ++i) {
#pragma GCC unroll 4
    for (int plane = 0; plane < kPlanes; ++plane) {
      sum[i][plane] =
          *reinterpret_cast<const UnalignedWords*>(requantize.offsets + block * kSpan + plane * L);
    }
  }
  const int64_t groups = depthwise_groups(p), step = kPlanes * E::kParts * L;
  const auto add = [&](const uint8_t* const* rows, int64_t column, auto each) {
    const auto bytes = [&](int i) { return row.load<kInside>(rows[i], x + column, channel, here); };
    const Planes planes = interleave(bytes(0), bytes(1), bytes(2), bytes(3));
#pragma GCC unroll 4
    for (int plane = 0; plane < kPlanes; ++plane) {
#pragma GCC unroll 4
      for (int part = 0; part < E::kParts; ++part) {
        each(plane, E::row_part(planes.words[plane], part), (plane * E::kParts + part) * L);
      }
    }
  };
  for (int64_t group = 0; group < groups; ++group) {
    const Word* of_group = w + group * step;
    const uint8_t* rows[kBytes];
    std::copy_n(row.rows.begin() + group * kBytes, kBytes, rows);
    if constexpr (kColumns == 0) {
      for (int64_t k = 0; k < p.kernel[2]; ++k) {
        add(rows, k * p.dilation[2], [&](int plane, Words words, int64_t at) {
          const Words weights = *reinterpret_cast<const AlignedWords*>(of_group + k * groups * step + at);
          sum[0][plane] = E::multiply_add(words, weights, sum[0][plane]);
        });
      }
    } else {
#pragma GCC unroll 16
      for (int column = 0; column < (kPixels - 1) * kStride + kColumns; ++column) {
        add(rows, column, [&](int plane, Words words, int64_t at) {
#pragma GCC unroll 4
          for (int i = 0; i < kPixels; ++i) {
            const int k = column - i * kStride;
            if (k < 0 || k >= kColumns) continue;
            const Words weights = *reinterpret_cast<const AlignedWords*>(of_group + k * groups * step + at);
            sum[i][plane] = E::multiply_add(words, weights, sum[i][plane]);
          }
        });
      }
    }
  }
  IntVec v[kPixels][kPlanes];
#pragma GCC unroll 4
  for (int plane = 0; plane < kPlanes; ++plane) {
    const VectorRequantization integers_of(requantize, block * kSpan + plane * L);
#pragma GCC unroll 4
    for (int i = 0; i < kPixels; ++i) v[i][plane] = integers_of(sum[i][plane]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kPixels; ++i) {
    const ByteVec bytes = low_bytes(v[i]);
    if (here == kSpan) {
      *reinterpret_cast<UnalignedByteVec*>(y + i * p.groups) = bytes;
    } else {
      store_first(y + i * p.groups, bytes, here);
    }
  }
}

#if defined(__AVX512F__)
constexpr int kDepthwisePixels = 4;
#else
constexpr int kDepthwisePixels = 2;
#endif

// Computes one row of Y for the channels of one block. `w` has the block's weights.
template <class E, int kStride, int kColumns>
void depthwise_row(const DepthwiseRow& row, const Requantization& requantize, const Word* w, int64_t block,
                   uint8_t* y) {
  const ConvolutionProblem& p = row.p;
  constexpr int kPixels = kColumns == 0 ? 1 : kDepthwisePixels;
  const int64_t here = std::min(kSpan, p.groups);
  y += first_channel(p, block);
  const int64_t pixels = p.OW() < kPixels ? 1 : kPixels;
  for (int64_t next = 0; next < p.OW(); next += pixels) {
    const int64_t i = std::min(next, p.OW() - pixels);  // the last pixels may be computed twice
    const int64_t x = i * p.stride[2] - p.pad[2];
    const bool inside = row.is_inside(x, (pixels - 1) * p.stride[2] + p.span(2), here);
    const auto run = pixels == 1 ? (inside ? depthwise_pixels<E, 1, kStride, kColumns, true>
                                           : depthwise_pixels<E, 1, kStride, kColumns, false>)
                     : inside    ? depthwise_pixels<E, kPixels, kStride, kColumns, true>
                                 : depthwise_pixels<E, kPixels, kStride, kColumns, false>;
    run(row, requantize, w, x, block, here, y + i * p.groups);
  }
}

// Returns the fastest depthwise_row for a window.
template <class E>
auto pick_depthwise_row(const ConvolutionProblem& p) {
  const auto is = [&](int64_t stride, int64_t columns) {
    return p.stride[2] == stride && p.kernel[2] == columns && p.dilation[2] == 1;
  };
  return is(1, 3)   ? depthwise_row<E, 1, 3>
         : is(2, 3) ? depthwise_row<E, 2, 3>
         : is(1, 5) ? depthwise_row<E, 1, 5>
         : is(2, 5) ? depthwise_row<E, 2, 5>
                    : depthwise_row<E, 0, 0>;
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
