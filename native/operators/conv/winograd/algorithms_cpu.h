// The algorithms of a 3x3 convolution: transforms, packed weights and tiles. For kernel files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/microkernels/gemm.h"
#include "operators/conv/convolution/problem.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// kF4x4 interpolates at 0, +-sqrt(1/2), +-sqrt(2) and infinity. Its error is a fifth of the error with 0, +-1, +-2 and
// infinity.
constexpr double kA = 0.70710678118654752440;  // sqrt(1/2)
constexpr double kB = 1.41421356237309504880;  // sqrt(2)

// The im2col GEMM: its tile is one pixel, and it transforms nothing.
struct Direct {
  using Transforms = Direct;
  static constexpr int kTile = 1;
  static constexpr int kAlpha = 1;
};

struct F2x2 {
  using Transforms = F2x2;
  static constexpr int kTile = 2;
  static constexpr int kAlpha = 4;
  static constexpr double kG[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};

  static void input(const Vec* d, Vec* v) {
    v[0] = d[0] - d[2];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[3] - d[1];
  }
  static void output(const Vec* m, Vec* y) {
    y[0] = m[0] + m[1] + m[2];
    y[1] = m[1] - m[2] + m[3];
  }
};

struct F4x4 {
  using Transforms = F4x4;  // input and output transforms, which F4x4Rows shares
  static constexpr int kTile = 4;
  static constexpr int kAlpha = 6;
  // The row of an interpolation point p is (1, p, p^2), divided by the product of the differences of p to the other
  // finite points.
  static constexpr double kG[6][3] = {
      {1, 0, 0},
      {-2.0 / 3, -2.0 / 3 * kA, -1.0 / 3},
      {-2.0 / 3, 2.0 / 3 * kA, -1.0 / 3},
      {1.0 / 6, 1.0 / 6 * kB, 1.0 / 3},
      {1.0 / 6, -1.0 / 6 * kB, 1.0 / 3},
      {0, 0, 1},
  };

  static void input(const Vec* d, Vec* v) {
    constexpr float a = static_cast<float>(kA), b = static_cast<float>(kB);
    const Vec even_a = d[4] - 2.0f * d[2], odd_a = d[3] - 2.0f * d[1];
    const Vec even_b = d[4] - 0.5f * d[2], odd_b = d[3] - 0.5f * d[1];
    v[0] = d[0] + d[4] - 2.5f * d[2];
    v[1] = even_a + a * odd_a;
    v[2] = even_a - a * odd_a;
    v[3] = even_b + b * odd_b;
    v[4] = even_b - b * odd_b;
    v[5] = d[1] + d[5] - 2.5f * d[3];
  }
  static void output(const Vec* m, Vec* y) {
    constexpr float a = static_cast<float>(kA), b = static_cast<float>(kB);
    const Vec even_a = m[1] + m[2], odd_a = m[1] - m[2];
    const Vec even_b = m[3] + m[4], odd_b = m[3] - m[4];
    y[0] = m[0] + even_a + even_b;
    y[1] = a * odd_a + b * odd_b;
    y[2] = 0.5f * even_a + 2.0f * even_b;
    y[3] = 0.5f * a * odd_a + 2.0f * b * odd_b + m[5];
  }
};

// Stores half-transformed weights: each 3x3 filter, transformed along one axis, has 6 x 3 values. Each run transforms
// the other axis.
struct F4x4Rows : F4x4 {};

template <class A>
constexpr bool kHalfTransformed = std::is_same_v<A, F4x4Rows>;

// Transforms the 9 C weights w of an output channel to [xi][k] with strides xi_stride and k_stride. xi is the index of
// a point (an element of a transformed tile). For F4x4Rows, transforms to [row][k][3] with stride k_stride.
template <class A, class T>
void transform_weights(const T* w, int64_t C, float* u, int64_t xi_stride, int64_t k_stride) {
  for (int64_t c = 0; c < C; ++c, w += 9) {
    if constexpr (A::kAlpha == 1) {
      for (int64_t tap = 0; tap < 9; ++tap) u[(c * 9 + tap) * k_stride] = static_cast<float>(w[tap]);
    } else {
      double g[9], rows[A::kAlpha][3];
      for (int i = 0; i < 9; ++i) g[i] = static_cast<double>(static_cast<float>(w[i]));
      for (int i = 0; i < A::kAlpha; ++i) {
        for (int j = 0; j < 3; ++j) {
          rows[i][j] = A::kG[i][0] * g[j] + A::kG[i][1] * g[3 + j] + A::kG[i][2] * g[6 + j];
        }
      }
      if constexpr (kHalfTransformed<A>) {
        for (int i = 0; i < A::kAlpha; ++i) {
          for (int j = 0; j < 3; ++j) u[((i * C + c) * 3 + j) * k_stride] = static_cast<float>(rows[i][j]);
        }
        continue;
      }
      for (int i = 0; i < A::kAlpha; ++i) {
        for (int j = 0; j < A::kAlpha; ++j) {
          u[(i * A::kAlpha + j) * xi_stride + c * k_stride] = static_cast<float>(
              rows[i][0] * A::kG[j][0] + rows[i][1] * A::kG[j][1] + rows[i][2] * A::kG[j][2]);
        }
      }
    }
  }
}

// Returns K of the GEMMs.
template <class A>
int64_t depth(const ConvolutionProblem& p) {
  return A::kAlpha == 1 ? 9 * p.C : p.C;
}

// Number of points: elements of a transformed tile.
template <class A>
constexpr int64_t kPoints = int64_t{A::kAlpha} * A::kAlpha;

// Stored weights for each pair of an input and an output channel.
template <class A>
constexpr int64_t kStoredWeights = kHalfTransformed<A> ? A::kAlpha * 3 : kPoints<A>;

template <class A>
size_t weight_bytes(const ConvolutionProblem& p) {
  return static_cast<size_t>(round_up(p.M, L) * depth<A>(p) * kStoredWeights<A>) * sizeof(float);
}

template <class A, class T>
void prepare(const ConvolutionProblem& p, const T* w, float* u) {
  const int64_t K = depth<A>(p);
  const int64_t padded_m = round_up(p.M, L);
  std::memset(u, 0, weight_bytes<A>(p));
  for (int64_t m = 0; m < p.M; ++m) {
    const int64_t first = m / (kPanel * L) * (kPanel * L);
    const int64_t panel = std::min(kPanel * L, padded_m - first);
    transform_weights<A>(w + m * p.C * 9, p.C, u + first * K * kStoredWeights<A> + (m - first), K * panel,
                         panel);
  }
}

// The tiles of a problem in the order image, row of tiles, column of tiles, and the layout of their data.
struct Geometry {
  int64_t tiles_x, tiles_y;  // tiles in a row and in a column of an image
  int64_t k;                 // K
  int64_t k_blocks;          // K / L, rounded up
};

template <class A>
Geometry geometry(const ConvolutionProblem& p) {
  Geometry g;
  g.tiles_x = ceil_div(p.OW(), A::kTile);
  g.tiles_y = ceil_div(p.OH(), A::kTile);
  g.k = depth<A>(p);
  g.k_blocks = ceil_div(g.k, L);
  return g;
}

// Returns the stride of the points of v for `tiles` tiles, in floats. It is an odd number of vectors, so the points
// are in different sets of a cache.
inline int64_t v_stride(const Geometry& g, int64_t tiles) { return (g.k_blocks * tiles | 1) * L; }

// Divides tiles [begin, end) into runs of at most `limit` tiles in a row. Calls fn(image, row, column, count, offset)
// for each run; the first tile of the run has index begin + offset.
template <class F>
void for_each_run(const Geometry& g, int64_t begin, int64_t end, int64_t limit, F&& fn) {
  for (int64_t t = begin; t < end;) {
    const int64_t row = t / g.tiles_x, tx = t % g.tiles_x;
    const int64_t in_row = std::min(end - t, g.tiles_x - tx);
    for (int64_t from = 0; from < in_row; from += limit) {
      fn(row / g.tiles_y, row % g.tiles_y, tx + from, std::min(limit, in_row - from), t + from - begin);
    }
    t += in_row;
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
