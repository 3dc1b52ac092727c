// The patches of a convolution as a GEMM operand: element by element from images [N, C, H, W], in packs from
// channels-last images.
#pragma once

#include "device/platform.h"
#include "gemm/loaders/im2col_args.h"
#include "gemm/loaders/packs.h"
#include "gemm/pipelines/steps.h"

namespace graphopt::hip {

// The channel and the kernel tap (r, s) that index k of the GEMM stands for. `offset`: number of elements of X from the
// first tap of the first channel to this tap.
struct ConvTap {
  ptrdiff_t offset;
  int down, right;  // rows and columns
  int r, s;

  DEVICE ConvTap(int k, const Divisor& taps, const Divisor& kernel_w, const ConvWindow& p, int H, int W) {
    const uint32_t c = divide(static_cast<uint32_t>(k), taps), tap = static_cast<uint32_t>(k) - c * taps.d;
    r = static_cast<int>(divide(tap, kernel_w));
    s = static_cast<int>(tap) - r * p.kernel_w;
    down = r * p.dilation_h;
    right = s * p.dilation_w;
    offset = static_cast<ptrdiff_t>(c) * H * W + static_cast<ptrdiff_t>(down) * W + right;
  }
  DEVICE void next(const ConvWindow& p, int H, int W) {
    ++s;
    right += p.dilation_w;
    offset += p.dilation_w;
    if (s < p.kernel_w) return;
    offset += static_cast<ptrdiff_t>(p.dilation_h) * W - right;
    s = right = 0;
    ++r;
    down += p.dilation_h;
    if (r < p.kernel_h) return;
    offset += static_cast<ptrdiff_t>(H - down) * W;
    r = down = 0;
  }
};

// The pixel of X that the first tap of an output pixel reads. It may be outside X.
template <class T>
struct ConvPixel {
  const T* at;
  int top, left;

  DEVICE T load(const ConvTap& tap, bool inside, int H, int W) const {
    const auto h = static_cast<uint32_t>(top + tap.down), w = static_cast<uint32_t>(left + tap.right);
    inside = inside && h < static_cast<uint32_t>(H) && w < static_cast<uint32_t>(W);
    return inside ? at[tap.offset] : from_float<T>(0.0f);
  }
};

// Returns the pixel of X that the first tap of output pixel n reads; n counts the pixels of all images.
template <class T>
DEVICE ConvPixel<T> conv_pixel(const ConvArgs& args, int group, uint32_t n) {
  const T* x = args.x;
  const ConvWindow& p = args.window;
  const uint32_t at = n < args.pixels ? n : 0;
  const uint32_t i = divide(at, args.per_image), rest = at - i * args.per_image.d;
  const uint32_t row = divide(rest, args.across);
  ConvPixel<T> pixel;
  pixel.top = static_cast<int>(row) * p.stride_h - p.top;
  pixel.left = static_cast<int>(rest - row * args.across.d) * p.stride_w - p.left;
  pixel.at =
      x +
      (static_cast<ptrdiff_t>(i) * args.groups + group) * static_cast<ptrdiff_t>(args.C) * args.H * args.W +
      static_cast<ptrdiff_t>(pixel.top) * args.W + pixel.left;
  if (n >= args.pixels) pixel.top = -(1 << 30);  // outside X for every tap
  return pixel;
}

// The part of the patches that a work-item gathers, for the same pixels at every k. kByLine: LDS has a row for each
// pixel, and a pack has kSize taps of one pixel. Otherwise LDS has a row for each k, and a pack has one tap of kSize
// pixels.
template <class Gemm, class T>
struct ConvPatches {
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kPixels = Gemm::kByLine ? 1 : kSize, kAcross = Gemm::kN / kPixels;
  static constexpr int kPacks = Gemm::kN * Gemm::kDepth / kSize / Gemm::kThreads;
  static_assert(Gemm::kThreads % kAcross == 0, "whole rows of pixels");

  const ConvArgs& args;
  int depth, column, first_row;
  ConvPixel<T> pixel[kPixels];
  Pack<T> patches[kPacks];

  DEVICE ConvPatches(const ConvArgs& of, int group, uint32_t first_n, int K)
      : args(of), depth(K), column(thread_x() % kAcross * kPixels) {
    UNROLL for (int j = 0; j < kPixels; ++j) {
      pixel[j] = conv_pixel<T>(args, group, first_n + static_cast<uint32_t>(column + j));
    }
    first_row = kAcross % kWave == 0 ? same_in_wave(thread_x() / kAcross) : thread_x() / kAcross;
  }
  DEVICE int row_of(int i) const { return i * (Gemm::kThreads / kAcross) + first_row; }

  DEVICE void load(int first_k) {
    const int32_t H = args.H, W = args.W;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int k = first_k + row_of(i) * (kSize / kPixels);
      ConvTap tap(k, args.taps, args.kernel_w, args.window, H, W);
      UNROLL for (int j = 0; j < kSize; ++j) {
        if constexpr (Gemm::kByLine) {
          patches[i].v[j] = pixel[0].load(tap, k + j < depth, H, W);
          tap.next(args.window, H, W);
        } else {
          patches[i].v[j] = pixel[j].load(tap, k < depth, H, W);
        }
      }
    }
  }

  DEVICE void store(typename Gemm::Lds& lds, int buffer) const {
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if constexpr (Gemm::kByLine) {
        store_pack(&lds.b[buffer][column][row_of(i) * kSize], patches[i]);
      } else {
        UNROLL for (int j = 0; j < kSize; j += 4) {
          const Pack<T>& q = patches[i];
          const Pack<float> four = {
              {to_float(q.v[j]), to_float(q.v[j + 1]), to_float(q.v[j + 2]), to_float(q.v[j + 3])}};
          store_pack(&lds.b[buffer][row_of(i)][column + j], four);
        }
      }
    }
  }
};

// Returns a mask of `count` taps: bit i is set if first + i * step is in [0, size).
DEVICE uint32_t taps_inside(int first, int size, int count, int step) {
  if (step == 1) {
    const int begin = -min_int(first, 0), end = min_int(size - first, count);
    return begin < end ? (1u << end) - (1u << begin) : 0;
  }
  uint32_t bits = 0;
  NO_UNROLL for (int i = 0; i < count; ++i) {
    const bool is = static_cast<uint32_t>(first) < static_cast<uint32_t>(size);
    bits |= static_cast<uint32_t>(is) << i;
    first += step;
  }
  return bits;
}

// Copies the patches of a work-group's pixels to LDS. A work-item copies the same k indices of several pixels. With
// half_t, elements outside X are zeros; with int8, they are copies of args.outside().
template <class P, class Args = ChannelsLastConvArgs>
struct Im2colRows {
  static constexpr bool kInt8 = P::Gemm::kInt8;
  static constexpr int kAcross = P::kDepth / 8, kRows = P::kThreads / kAcross, kPacks = P::kM / kRows;
  // Number of groups of copies that are issued between the LDS loads of a step. Few groups are faster, because
  // each change from LDS loads to copies costs three instructions.
  static constexpr int kGroups = 2;
  static_assert(kPacks * kRows == P::kM, "whole packs for every work-item");

  static constexpr int kNoTap = kChannelsLastConvTaps;  // no mask has this bit

  const Args& args;
  const half_t* x;
  int row, column, k, end;    // column: in LDS
  int channel, r, s, offset;  // of the current tap
  int at[kPacks];             // the pixel of X at the first tap, which may be outside
  uint32_t taps[kPacks];      // bit r: tap row r is inside; bit 16 + s: tap column s is
  PacksToLds<P::kAsyncCopies, kPacks, true>
      packs;  // through the cache: adjacent taps copy mostly the same pixels

  DEVICE Im2colRows(const Args& of, int first_m, int first_k, int depth)
      : args(of), x(of.x), row(thread_x() / kAcross), column(thread_x() % kAcross * 8), end(first_k + depth) {
    start(first_m, first_k);
  }
  // Starts the patches of kM pixels from first_m on.
  DEVICE void start(int first_m, int first_k) {
    k = first_k + thread_x() % kAcross * 8;
    const ConvWindow& window = args.window;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int m = first_m + i * kRows + row;
      const auto pixel = static_cast<uint32_t>(min_int(m, args.M - 1));
      const uint32_t image = divide(pixel, args.per_image), rest = pixel - image * args.per_image.d;
      const uint32_t down = divide(rest, args.columns);
      const int top = static_cast<int>(down) * window.stride_h - window.top;
      const int left = static_cast<int>(rest - down * args.columns.d) * window.stride_w - window.left;
      at[i] = (static_cast<int>(image) * args.H + top) * args.W + left;
      taps[i] = taps_inside(top, args.H, m < args.M ? window.kernel_h : 0, window.dilation_h) |
                taps_inside(left, args.W, window.kernel_w, window.dilation_w) << 16;
    }
  }

  // Returns the number of elements from a pixel of X to the next.
  DEVICE int pixel() const {
    if constexpr (kInt8) {
      return args.pixel;
    } else {
      return static_cast<int>(args.channels.d);
    }
  }

  DEVICE void find_tap() {
    const uint32_t tap = divide(static_cast<uint32_t>(k), args.channels);
    channel = k - static_cast<int>(tap * args.channels.d);
    r = static_cast<int>(divide(tap, args.kernel_w));
    s = static_cast<int>(tap) - r * static_cast<int>(args.kernel_w.d);
    offset = r * args.window.dilation_h * args.W + s * args.window.dilation_w;
  }

  template <class Row>
  DEVICE void begin(Row* to, int part) {
    constexpr int kParts = P::Gemm::kSplitDepth / 16;
    if (part <= 0) {
      find_tap();
      if (k >= end) r = kNoTap;
    }
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if (!in_part(i, kPacks, part, kParts, kGroups)) continue;
      const bool is_inside = (taps[i] >> r & taps[i] >> (16 + s) & 1) != 0;
      begin_pack(i, to, x + static_cast<ptrdiff_t>(at[i] + offset) * pixel() + channel, is_inside);
    }
    if (is_last_part(part, kParts)) k += P::kDepth;
  }
  template <class Row>
  DEVICE void begin_pack(int i, Row* to, const half_t* from, bool is_inside) {
    half_t* const at_pack = &to[i * kRows + row][column];
    if constexpr (kInt8) {
      packs.begin(i, at_pack, is_inside ? from : args.outside(), true);
    } else {
      packs.begin(i, at_pack, from, is_inside);
    }
  }
  template <class Row>
  DEVICE void finish(Row* to) const {
    UNROLL for (int i = 0; i < kPacks; ++i) packs.finish(i, &to[i * kRows + row][column]);
  }
};

// Does the same through registers. Only the first step of a tap computes addresses; the next steps advance them.
template <class P, class Args = ChannelsLastConvArgs>
struct Im2colThroughRegisters : Im2colRows<P, Args> {
  using Base = Im2colRows<P, Args>;
  static constexpr int kPacks = Base::kPacks;

  const half_t* from[kPacks];  // the packs of the next step
  uint32_t are_inside;         // a bit for each pack that is inside X

  DEVICE Im2colThroughRegisters(const Args& of, int first_m, int first_k, int depth)
      : Base(of, first_m, first_k, depth) {
    find_packs();
  }
  DEVICE void find_packs() {
    this->find_tap();
    are_inside = 0;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      from[i] = this->x + static_cast<ptrdiff_t>(this->at[i] + this->offset) * this->pixel() + this->channel;
      are_inside |= (this->taps[i] >> this->r & this->taps[i] >> (16 + this->s) & 1) << i;
    }
  }

  template <class Row>
  DEVICE void begin(Row* to, int) {
    if (this->channel >= static_cast<int32_t>(this->args.channels.d)) find_packs();
    const uint32_t mask = this->k < this->end ? are_inside : 0;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      this->begin_pack(i, to, from[i], (mask >> i & 1) != 0);
      from[i] += P::kDepth;
    }
    this->k += P::kDepth;
    this->channel += P::kDepth;
  }
};

template <class P, class Args = ChannelsLastConvArgs>
using Im2col = typename Select<P::kAsyncCopies, Im2colRows<P, Args>, Im2colThroughRegisters<P, Args>>::Type;

}  // namespace graphopt::hip
