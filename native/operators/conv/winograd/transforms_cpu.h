// The input transform, and the output transform with the epilogue. For kernel files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/microkernels/activation.h"
#include "operators/conv/winograd/algorithms_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Writes block kb of K, which has L channels, to v for tiles [begin, end).
template <class A, class T>
void transform_input(const ConvolutionProblem& p, const Geometry& g, const T* x, int64_t begin, int64_t end,
                     int64_t kb, float* v) {
  constexpr int kAlpha = A::kAlpha;
  constexpr int64_t kColumns = 4;                          // vectors of input columns at a time
  constexpr int64_t kRun = (kColumns * L - 2) / A::kTile;  // tiles of these columns
  alignas(64) float by_channel[kAlpha][L * L];             // [row][channel][column]
  alignas(64) float by_column[kAlpha][kColumns * L * L];   // [row][column][channel]
  const int64_t channels = std::min(L, p.C - kb * L);
  const int64_t next_block = kb + 1 < g.k_blocks ? L * p.H() * p.W() : 0;
  for_each_run(g, begin, end, kRun, [&](int64_t n, int64_t ty, int64_t tx, int64_t count, int64_t offset) {
    const int64_t ih = ty * A::kTile - p.pad[1], iw = tx * A::kTile - p.pad[2];
    const int64_t row_lo = std::max<int64_t>(0, -ih), row_hi = std::min<int64_t>(kAlpha, p.H() - ih);
    const T* plane = x + (n * p.C + kb * L) * p.H() * p.W();
    for (int64_t column = 0; column < count * A::kTile + 2; column += L) {
      const int64_t lo = -(iw + column), hi = p.W() - (iw + column);
      for (int64_t c = 0; c < L; ++c) {
        Vec d[kAlpha] = {}, t[kAlpha];
        if (c < channels) {
          const T* in = plane + c * p.H() * p.W() + ih * p.W() + iw + column;
          if (row_lo == 0 && row_hi == kAlpha) {
#pragma GCC unroll 6
            for (int i = 0; i < kAlpha; ++i) {
              __builtin_prefetch(in + next_block + i * p.W(), 0, 2);
              d[i] = load_range(in + i * p.W(), lo, hi);
            }
          } else {
#pragma GCC unroll 6
            for (int i = 0; i < kAlpha; ++i) {
              if (i >= row_lo && i < row_hi) d[i] = load_range(in + i * p.W(), lo, hi);
            }
          }
        }
        A::input(d, t);
#pragma GCC unroll 6
        for (int i = 0; i < kAlpha; ++i) store_aligned(by_channel[i] + c * L, t[i]);
      }
      for (int i = 0; i < kAlpha; ++i) transpose(by_channel[i], L, by_column[i] + column * L, L);
    }
    float* v_out = v + (kb * (end - begin) + offset) * L;
    for (int64_t tile = 0; tile < count; ++tile, v_out += L) {
      for (int i = 0; i < kAlpha; ++i) {
        Vec d[kAlpha], t[kAlpha];
#pragma GCC unroll 6
        for (int j = 0; j < kAlpha; ++j) d[j] = load_aligned(by_column[i] + (tile * A::kTile + j) * L);
        A::input(d, t);
#pragma GCC unroll 6
        for (int j = 0; j < kAlpha; ++j)
          store_aligned(v_out + (i * kAlpha + j) * v_stride(g, end - begin), t[j]);
      }
    }
  });
}

// The same for the direct algorithm: gathers the windows of the pixels, k = 9 c + 3 ky + kx.
template <class T>
void gather_input(const ConvolutionProblem& p, const Geometry& g, const T* x, int64_t begin, int64_t end,
                  int64_t kb, float* v) {
  alignas(64) float by_k[L * L], by_pixel[L * L];
  const int64_t k_end = std::min(L, g.k - kb * L);
  for_each_run(g, begin, end, L, [&](int64_t n, int64_t oh, int64_t ow, int64_t count, int64_t offset) {
    for (int64_t i = 0; i < L; ++i) {
      Vec d = {};
      if (i < k_end) {
        const int64_t c = (kb * L + i) / 9, tap = (kb * L + i) % 9;
        const int64_t ih = oh + tap / 3 - p.pad[1], iw = ow + tap % 3 - p.pad[2];
        if (ih >= 0 && ih < p.H()) {
          d = load_range(x + ((n * p.C + c) * p.H() + ih) * p.W() + iw, -iw, std::min(count, p.W() - iw));
        }
      }
      store_aligned(by_k + i * L, d);
    }
    transpose(by_k, L, by_pixel, L);
    std::memcpy(v + (kb * (end - begin) + offset) * L, by_pixel,
                static_cast<size_t>(count * L) * sizeof(float));
  });
}

template <class T>
struct WinogradOutput {
  const T* bias;
  const T* residual;
  const T* slopes;  // PRelu slopes, one for each channel; null: p.act is applied
  T* y;
  bool stream;  // y is too large to remain in a cache until it is read
};

constexpr int64_t kOutputRun = 64;  // pixels of a row at a time: whole cache lines

// Computes the pixels of tile t of a run from its sums.
template <class A>
void output_tile(const float* in, int64_t xi_stride, float (*by_pixel)[kOutputRun * L], int64_t t) {
  Vec half_done[A::kTile][A::kAlpha];
#pragma GCC unroll 6
  for (int j = 0; j < A::kAlpha; ++j) {
    Vec d[A::kAlpha], y[A::kTile];
#pragma GCC unroll 6
    for (int i = 0; i < A::kAlpha; ++i) d[i] = load_aligned(in + (i * A::kAlpha + j) * xi_stride);
    A::output(d, y);
#pragma GCC unroll 4
    for (int i = 0; i < A::kTile; ++i) half_done[i][j] = y[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < A::kTile; ++i) {
    Vec y[A::kTile];
    A::output(half_done[i], y);
#pragma GCC unroll 4
    for (int j = 0; j < A::kTile; ++j) store_aligned(by_pixel[i] + (t * A::kTile + j) * L, y[j]);
  }
}

// Applies bias, residual and activation to the n contiguous elements x of channel m, and stores them to y at `at`.
// Overwrites x, which must be readable for L floats beyond these elements. Storing all elements together writes most
// cache lines of y once and entirely.
template <class T>
void finish(const ConvolutionProblem& p, const WinogradOutput<T>& out, int64_t m, float* x, int64_t at,
            int64_t n) {
  const auto bias = static_cast<float>(out.bias[m]);
  const Activation act = out.slopes != nullptr
                             ? Activation{ActivationKind::kLeakyRelu, static_cast<float>(out.slopes[m])}
                             : p.act;
  const bool relu = act.kind == ActivationKind::kRelu;
  const bool simple = relu || act.kind == ActivationKind::kNone;
  const Vec zero = {};
  for (int64_t i = 0; i < n; i += L) {
    Vec v = load(x + i) + bias;
    if (p.has_residual) v += load_range(out.residual + at + i, 0, n - i);
    if (relu) v = larger(zero, v);
    if (simple) {
      store_part(out.y + at + i, v, n - i, out.stream);
    } else {
      store_part(x + i, v, n - i, false);  // element n belongs to the next row
    }
  }
  if (simple) return;
  activate_block(act, x, x, static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i += L) store_part(out.y + at + i, load(x + i), n - i, out.stream);
}

// Computes the output pixels of tiles [begin, end) and channels m to m + vectors * L from their sums.
template <class A, class T>
void transform_output(const ConvolutionProblem& p, const Geometry& g, const float* o, int64_t xi_stride,
                      int64_t begin, int64_t end, int64_t m, int64_t vectors, const WinogradOutput<T>& out) {
  constexpr int64_t kStride = A::kTile * kOutputRun + L;
  alignas(64) float by_pixel[A::kTile][kOutputRun * L];  // [row][column][channel]
  alignas(64) float by_channel[L * kStride];             // [channel][row][column], rows without gaps
  for_each_run(g, begin, end, kOutputRun / A::kTile,
               [&](int64_t n, int64_t ty, int64_t tx, int64_t count, int64_t offset) {
                 const int64_t oh = ty * A::kTile, ow = tx * A::kTile;
                 const int64_t pixels = std::min(count * A::kTile, p.OW() - ow);
                 const int64_t rows = std::min<int64_t>(A::kTile, p.OH() - oh);
                 for (int64_t vector = 0; vector < vectors; ++vector) {
                   const int64_t first = m + vector * L;
                   const float* in = o + (offset * vectors + vector) * L;
                   if constexpr (A::kAlpha > 1) {
                     for (int64_t t = 0; t < count; ++t)
                       output_tile<A>(in + t * vectors * L, xi_stride, by_pixel, t);
                   }
                   for (int64_t i = 0; i < rows; ++i) {
                     // The next row overwrites the elements that a transposition writes beyond this row.
                     for (int64_t j = 0; j < pixels; j += L) {
                       if constexpr (A::kAlpha > 1) {
                         transpose(by_pixel[i] + j * L, L, by_channel + i * pixels + j, kStride);
                       } else {
                         transpose(in + j * vectors * L, vectors * L, by_channel + j, kStride);
                       }
                     }
                   }
                   for (int64_t c = 0; c < std::min(L, p.M - first); ++c) {
                     const int64_t at = ((n * p.M + first + c) * p.OH() + oh) * p.OW() + ow;
                     float* x = by_channel + c * kStride;
                     if (pixels == p.OW()) {
                       finish(p, out, first + c, x, at, rows * pixels);
                     } else {
                       for (int64_t i = 0; i < rows; ++i)
                         finish(p, out, first + c, x + i * pixels, at + i * p.OW(), pixels);
                     }
                   }
                 }
               });
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
