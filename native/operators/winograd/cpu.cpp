// 3x3 convolution: gather or Winograd-transform the input, multiply, transform back, finish.
//
// The unit of work is a "tile": MT x MT output pixels for Winograd's F(MT x MT, 3x3), one pixel for the
// direct algorithm. Every algorithm is kAlpha^2 independent matrix products [tiles, K] x [K, M], where kAlpha
// = MT + 2 and K = C for Winograd, kAlpha = 1 and K = 9 C for direct. All arrays are blocked by L, the number
// of lanes of a vector:
//
//   v [kAlpha^2][K / L][tiles][L]      input, transformed; one vector holds L channels of one tile
//   u [M / panel][kAlpha^2][K][panel]  weights, transformed; a panel is kPanel vectors of output channels
//     [M / panel][kAlpha][K][3][panel] where their rows alone are: half as many
//   o [kAlpha^2][tiles][panel]         one panel of products, read back while in the second-level cache
#include "operators/winograd/cpu.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "blocks/cpu/activation.h"
#include "blocks/cpu/product.h"
#include "blocks/cpu/workspace.h"
#include "blocks/half.h"
#include "device/cpu/cache.h"
#include "device/cpu/parallel_for.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

constexpr int64_t L = kWidth;

// --- Algorithms

// kF4x4 interpolates at 0, +-sqrt(1/2), +-sqrt(2) and infinity, whose error is a fifth of that of 0, +-1,
// +-2.
constexpr double kA = 0.70710678118654752440;  // sqrt(1/2)
constexpr double kB = 1.41421356237309504880;  // sqrt(2)

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
  // Row of the point p: (1, p, p^2) over the product of its differences to the other finite points.
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

// Of its weights 18 numbers for 9 are kept, transformed along one axis; each run does it along the other.
struct F4x4Rows : F4x4 {};

template <class A>
constexpr bool kKeepsRows = std::is_same_v<A, F4x4Rows>;

// --- Weights

// [xi][k] of the output channel whose 9 C weights are at w, xi_stride and k_stride apart; or [row][k][3], k_stride apart.
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
      if constexpr (kKeepsRows<A>) {
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

// Along K, the channels of a tile's products.
template <class A>
int64_t depth(const ConvolutionProblem& p) {
  return A::kAlpha == 1 ? 9 * p.C : p.C;
}

template <class A>
constexpr int64_t kPoints = int64_t{A::kAlpha} * A::kAlpha;

// Numbers that are kept of the weights from a channel to another.
template <class A>
constexpr int64_t kKept = kKeepsRows<A> ? A::kAlpha * 3 : kPoints<A>;

template <class A>
size_t weight_bytes(const ConvolutionProblem& p) {
  return static_cast<size_t>(round_up(p.M, L) * depth<A>(p) * kKept<A>) * sizeof(float);
}

template <class A, class T>
void prepare(const ConvolutionProblem& p, const T* w, float* u) {
  const int64_t K = depth<A>(p);
  const int64_t padded_m = round_up(p.M, L);
  std::memset(u, 0, weight_bytes<A>(p));
  for (int64_t m = 0; m < p.M; ++m) {
    const int64_t first = m / (kPanel * L) * (kPanel * L);
    const int64_t panel = std::min(kPanel * L, padded_m - first);
    transform_weights<A>(w + m * p.C * 9, p.C, u + first * K * kKept<A> + (m - first), K * panel, panel);
  }
}

// --- Input

// Tiles [begin, end) of a problem in the order image, row of tiles, column of tiles, and where their data
// are.
struct Geometry {
  int64_t tiles_x, tiles_y;
  int64_t k;         // K
  int64_t k_blocks;  // K / L, rounded up
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

// Floats between the points of v of some tiles: an odd number of cache lines, so that the points do not share
// the sets of a cache.
int64_t v_stride(const Geometry& g, int64_t tiles) { return (g.k_blocks * tiles | 1) * L; }

// Calls fn(n, ty, tx, count, offset) for runs of at most limit tiles of one row; offset counts from begin.
template <class F>
void for_each_run(const Geometry& g, int64_t begin, int64_t end, int64_t limit, F&& fn) {
  for (int64_t t = begin; t < end;) {
    const int64_t row = t / g.tiles_x, tx = t % g.tiles_x;
    const int64_t whole = std::min(end - t, g.tiles_x - tx);
    for (int64_t from = 0; from < whole; from += limit) {
      fn(row / g.tiles_y, row % g.tiles_y, tx + from, std::min(limit, whole - from), t + from - begin);
    }
    t += whole;
  }
}

// v of tiles [begin, end), of which k block kb is written.
template <class A, class T>
void transform_input(const ConvolutionProblem& p, const Geometry& g, const T* x, int64_t begin, int64_t end,
                     int64_t kb, float* v) {
  constexpr int kAlpha = A::kAlpha;
  constexpr int64_t kColumns = 4;                          // vectors of input columns at a time
  constexpr int64_t kRun = (kColumns * L - 2) / A::kTile;  // tiles that they cover
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

// The same for the direct algorithm: the windows of the pixels, k = 9 c + 3 ky + kx.
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

// --- Matrix product

// o [kRows][kVectors L] = a [kRows][k] u [k][kVectors L]; a is blocked: [k / L][kRows][L], blocks a_stride
// apart. Fetches other calls' operands into the second-level cache: at next_a what is shaped like a, and from
// next_u on kVectors lines for each k, next_step floats further each time.
template <int kVectors>
struct MultiplyTiles {
  template <int kRows>
  struct Of {
    static void run(const float* a, int64_t a_stride, const float* u, int64_t k, float* o,
                    const float* next_a, const float* next_u, int64_t next_step, bool adds) {
      Vec sum[kRows][kVectors] = {};
      if (adds) {
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
          for (int j = 0; j < kVectors; ++j) sum[i][j] = load_aligned(o + (i * kVectors + j) * L);
        }
      }
      for (; k > 0; k -= L, a += a_stride, next_a += a_stride) {
        const float* row = a;
        const float* next_row = next_a;
        for (const float* row_end = a + std::min(k, L); row < row_end; ++row, u += kVectors * L) {
          __builtin_prefetch(next_row, 0, 2);
          next_row += L;
          Vec b[kVectors];
#pragma GCC unroll 2
          for (int j = 0; j < kVectors; ++j) {
            if (j * L % kLineNumbers == 0) __builtin_prefetch(next_u + j * L, 0, 2);
            b[j] = load_aligned(u + j * L);
          }
          next_u += next_step;
#pragma GCC unroll 14
          for (int i = 0; i < kRows; ++i) {
            const Vec s = splat(row[i * L]);
#pragma GCC unroll 2
            for (int j = 0; j < kVectors; ++j) sum[i][j] += s * b[j];
          }
        }
      }
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) store_aligned(o + (i * kVectors + j) * L, sum[i][j]);
      }
    }
  };
};

// o [rows][panel] for one point: all tiles of a range against one panel. next_v and next_u are those of the
// next call.
void multiply_panel(const float* v, int64_t rows, const float* u, int64_t k, int64_t vectors, float* o,
                    const float* next_v, const float* next_u, bool adds = false) {
  const int64_t pieces = ceil_div(rows, kMaxRows);
  // The first pieces share the fetching, which a single one could not keep up with.
  const int64_t parts = std::min(pieces, vectors);
  const int64_t step = vectors / parts * L;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t from = rows * i / pieces, to = rows * (i + 1) / pieces;
    const auto fn = vectors == kPanel ? of_rows<MultiplyTiles<kPanel>::Of>(to - from)
                                      : of_rows<MultiplyTiles<1>::Of>(to - from);
    fn(v + from * L, rows * L, u, k, o + from * vectors * L, i + 1 < pieces ? v + to * L : next_v,
       i < parts ? next_u + i * k * step : u, step, adds);
  }
}

// --- Rows of weights

constexpr int64_t kRowChannels = 64;  // whose points of a row are transformed at a time: a first-level cache

// Floats from a point to the next one: an odd number of cache lines, as of v.
int64_t row_point(int64_t numbers) { return (ceil_div(numbers, kLineNumbers) | 1) * kLineNumbers; }

// The points of a row from g [count][3][width], to [6][count][width].
void transform_row(const float* g, int64_t count, int64_t width, float* to) {
  constexpr auto entry = [](int point, int tap) { return static_cast<float>(F4x4::kG[point][tap]); };
  const int64_t point = row_point(count * width), next = 3 * count * width;
  for (int64_t k = 0; k < count; ++k, g += 3 * width, to += width) {
    for (int64_t i = 0; i < width; i += L) {
      Vec tap[3];
#pragma GCC unroll 3
      for (int j = 0; j < 3; ++j) {
        tap[j] = load_aligned(g + j * width + i);
        __builtin_prefetch(g + next + j * width + i, 0, 2);
      }
      // Two points of the same square differ in the sign of the middle tap.
      const Vec even_a = entry(1, 0) * tap[0] + entry(1, 2) * tap[2], odd_a = entry(1, 1) * tap[1];
      const Vec even_b = entry(3, 0) * tap[0] + entry(3, 2) * tap[2], odd_b = entry(3, 1) * tap[1];
      const Vec points[] = {tap[0], even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, tap[2]};
#pragma GCC unroll 6
      for (int j = 0; j < F4x4::kAlpha; ++j) store_aligned(to + j * point + i, points[j]);
    }
  }
}

// o of a panel from its rows w, some channels of a row at a time. `points` holds what is transformed.
void multiply_by_rows(const Geometry& g, const float* v, int64_t count, const float* w, int64_t vectors,
                      float* points, float* o, int64_t xi_stride) {
  const int64_t width = vectors * L, next_v = v_stride(g, count);
  // Of no channels, too: the sums are zeros then.
  const int64_t blocks = std::max<int64_t>(ceil_div(g.k, kRowChannels), 1);
  for (int64_t row = 0; row < F4x4::kAlpha; ++row) {
    for (int64_t k = 0; k < blocks * kRowChannels; k += kRowChannels) {
      const int64_t here = std::min(kRowChannels, g.k - k);
      transform_row(w + (row * g.k + k) * 3 * width, here, width, points);
      for (int64_t i = 0; i < F4x4::kAlpha; ++i) {
        const int64_t xi = row * F4x4::kAlpha + i;
        const float *block = v + xi * next_v + k * count, *u = points + i * row_point(here * width);
        multiply_panel(block, count, u, here, vectors, o + xi * xi_stride,
                       i + 1 < F4x4::kAlpha ? block + next_v : block, u, k > 0);
      }
    }
  }
}

// --- All points

// Tiles, transformed, and the panels of output channels that they are multiplied by.
struct TilesByPanels {
  const float* v;
  int64_t count, panel, end;
};

// o of these panels, o_stride apart.
template <class A>
void multiply_points(const ConvolutionProblem& p, const Geometry& g, const float* weights,
                     const TilesByPanels& of, float* o, int64_t o_stride, int64_t xi_stride,
                     [[maybe_unused]] float* points) {
  const auto panel_of = [&](int64_t i) { return weights + i * kPanel * L * g.k * kKept<A>; };
  if constexpr (kKeepsRows<A>) {
    for (int64_t i = of.panel; i < of.end; ++i, o += o_stride) {
      multiply_by_rows(g, of.v, of.count, panel_of(i), panel_vectors(p.M, i), points, o, xi_stride);
    }
  } else {
    const int64_t next = v_stride(g, of.count);
    for (int64_t xi = 0; xi < kPoints<A>; ++xi) {
      for (int64_t i = of.panel; i < of.end; ++i) {
        const int64_t vectors = panel_vectors(p.M, i), size = vectors * L * g.k;
        const float* u = panel_of(i) + xi * size;
        multiply_panel(of.v + xi * next, of.count, u, g.k, vectors,
                       o + (i - of.panel) * o_stride + xi * xi_stride,
                       of.v + (i + 1 < of.end ? xi : xi + 1) * next, u + size);
      }
    }
  }
}

// --- Output

template <class T>
struct Output {
  const T* bias;
  const T* residual;
  const T* slopes;  // of what is below zero then, of each channel; null: p.act follows
  T* y;
  bool stream;  // y is too large to be found in a cache by who reads it
};

constexpr int64_t kOutputRun = 64;  // pixels of a row at a time: whole cache lines

// The pixels of tile t of a run from its products.
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

// Finished values of channel m: n contiguous ones of y at `at`, from x, which is overwritten and can be
// read for L floats beyond them. They are stored in this one go so that a line of y is written once and as a
// whole where possible.
template <class T>
void finish(const ConvolutionProblem& p, const Output<T>& out, int64_t m, float* x, int64_t at, int64_t n) {
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
      store_part(x + i, v, n - i, false);  // behind n lies the next row
    }
  }
  if (simple) return;
  activate_block(act, x, x, static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i += L) store_part(out.y + at + i, load(x + i), n - i, out.stream);
}

// Output pixels of tiles [begin, end) and the output channels m to m + vectors * L from their products.
template <class A, class T>
void transform_output(const ConvolutionProblem& p, const Geometry& g, const float* o, int64_t xi_stride,
                      int64_t begin, int64_t end, int64_t m, int64_t vectors, const Output<T>& out) {
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
                     // What a transposition writes beyond the row is overwritten by the next row.
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

// --- The whole

constexpr int64_t kSharedBytes = 8 << 20;  // v of tiles that all lanes share: part of a last-level cache
constexpr int64_t kStreamBytes = 2 << 20;  // a lane's y: from here on it is stored past the caches
constexpr int64_t kFewestTiles = 4;        // of a piece: with fewer, weights are most of what is read
constexpr int64_t kPassing = 2;            // what passing a panel's weights costs beside a tile
constexpr int64_t kGroup = 2;  // panels that share a reading of v when v is not in the second-level cache

// How the tiles are divided among the lanes.
template <class A>
struct Schedule {
  // o of a lane: half of a second-level cache; for the direct algorithm, which reads it once, of a
  // first-level one.
  static int64_t product_bytes() { return kPoints<A> == 1 ? 32 << 10 : second_level_cache() / 2; }

  Geometry g;
  int64_t lanes, tiles, panels;
  bool stream;     // y is stored past the caches
  int64_t unit;    // parts of the tiles begin at multiples of it: at a full cache line of y where it streams
  bool apart;      // every lane transforms and multiplies tiles of its own: v is half of a second-level cache
  int64_t blocks;  // else lanes share the transformed tiles of a block
  int64_t pieces;  // of all tiles, or of a block
  int64_t group;   // panels that a lane multiplies at a time
  int64_t largest;  // tiles of a piece

  Schedule(const ConvolutionProblem& p, size_t element_size, size_t most_lanes)
      : g(geometry<A>(p)),
        lanes(static_cast<int64_t>(most_lanes)),
        tiles(p.N * g.tiles_y * g.tiles_x),
        panels(ceil_div(round_up(p.M, L), kPanel * L)),
        stream(p.N * p.M * p.OH() * p.OW() * static_cast<int64_t>(element_size) >= kStreamBytes * lanes),
        unit(stream ? std::max<int64_t>(kLineNumbers / A::kTile, 1) : 1) {
    const int64_t v_bytes = v_floats(64) / 64 * static_cast<int64_t>(sizeof(float)) + 1;  // of a tile
    const int64_t o_bytes = o_floats(64) / 64 * static_cast<int64_t>(sizeof(float));
    const int64_t local =
        std::min({second_level_cache() / 2 / v_bytes, product_bytes() / o_bytes, ceil_div(tiles, lanes)});
    apart = local >= 2 * kMaxRows;
    if (apart) {
      blocks = 1;
      pieces = ceil_div(tiles, local);
      group = 1;
      largest = std::min(tiles, ceil_div(tiles, pieces) + unit);
      return;
    }
    // Lanes divide the output channels, so that weights are read once for many tiles.
    blocks = ceil_div(tiles, std::max<int64_t>(kSharedBytes / v_bytes, kMaxRows));
    const int64_t most_of_block = std::min(tiles, ceil_div(tiles, blocks) + unit);
    const int64_t fewest = ceil_div(most_of_block, std::max<int64_t>(product_bytes() / kGroup / o_bytes, 1));
    const int64_t most = std::max(fewest, ceil_div(most_of_block, std::max(unit, kFewestTiles)));
    pieces = parts_of_least_cost(fewest, most, panels, lanes, [&](int64_t n) {
      const int64_t count = ceil_div(most_of_block, n);
      return count + kPassing * ceil_div(count, kMaxRows);
    });
    group = panels * pieces >= 4 * kGroup * lanes ? kGroup : 1;
    largest = std::min(most_of_block, ceil_div(most_of_block, pieces) + unit);
  }

  // Where part i of n tiles begins.
  int64_t split(int64_t n, int64_t i, int64_t parts) const {
    return std::min(n, round_up(n * i / parts, unit));
  }
  int64_t v_floats(int64_t count) const { return kPoints<A> * v_stride(g, count); }
  // One panel's. The direct algorithm transposes L rows even where fewer are left.
  int64_t o_floats(int64_t count) const { return kPoints<A> * (count * kPanel + 1) * L + kPanel * L * L; }

  float* take_v(Workspace& workspace) const {
    return workspace.take<float>(v_floats(largest) * (apart ? lanes : pieces));
  }
  // What multiply_by_rows wants, of a lane.
  static int64_t points() { return kKeepsRows<A> ? F4x4::kAlpha * row_point(kRowChannels * kPanel * L) : 0; }
  float* take_points(Workspace& workspace) const { return workspace.take<float>(points() * lanes); }
  float* take_o(Workspace& workspace) const {
    return workspace.take<float>(o_floats(largest) * group * lanes);
  }
};

template <class A>
size_t workspace_of(const ConvolutionProblem& p, size_t element_size, size_t lanes) {
  const Schedule<A> schedule(p, element_size, lanes);
  Workspace workspace(nullptr);
  schedule.take_v(workspace);
  schedule.take_o(workspace);
  schedule.take_points(workspace);
  return workspace.bytes();
}

template <class A, class T>
void convolve(const ConvolutionProblem& p, const T* x, const float* weights, const T* bias, const T* residual,
              const T* slopes, T* y, Parallel& parallel, void* memory) {
  const Schedule<A> schedule(p, sizeof(T), parallel.lanes());
  const Geometry& g = schedule.g;
  const int64_t tiles = schedule.tiles, panels = schedule.panels;
  const Output<T> out{bias, residual, slopes, y, schedule.stream};
  Workspace workspace(memory);
  float* v = schedule.take_v(workspace);
  float* o = schedule.take_o(workspace);
  float* points = schedule.take_points(workspace);

  const auto input = [&](int64_t begin, int64_t end, int64_t kb, float* v) {
    if constexpr (A::kAlpha == 1) {
      gather_input(p, g, x, begin, end, kb, v);
    } else {
      transform_input<typename A::Transforms>(p, g, x, begin, end, kb, v);
    }
  };
  const auto product = [&](const float* v, int64_t begin, int64_t end, int64_t panel, int64_t panel_end,
                           float* o, float* points) {
    const int64_t count = end - begin, xi_stride = (count * kPanel | 1) * L;
    multiply_points<A>(p, g, weights, {v, count, panel, panel_end}, o, schedule.o_floats(count), xi_stride,
                       points);
    for (int64_t i = panel; i < panel_end; ++i) {
      transform_output<typename A::Transforms>(p, g, o + (i - panel) * schedule.o_floats(count), xi_stride,
                                               begin, end, i * kPanel * L, panel_vectors(p.M, i), out);
    }
#if defined(__AVX2__)
    if (out.stream) _mm_sfence();
#endif
  };

  const auto points_of = [&](size_t lane) { return points + static_cast<int64_t>(lane) * schedule.points(); };
  const int64_t v_part = schedule.v_floats(schedule.largest);
  const int64_t o_part = schedule.o_floats(schedule.largest) * schedule.group;
  const int64_t pieces = schedule.pieces;
  if (schedule.apart) {
    parallel_for(parallel, pieces, [&](int64_t piece, size_t lane) {
      const int64_t begin = schedule.split(tiles, piece, pieces);
      const int64_t end = schedule.split(tiles, piece + 1, pieces);
      float* my_v = v + static_cast<int64_t>(lane) * v_part;
      float* my_o = o + static_cast<int64_t>(lane) * o_part;
      for (int64_t kb = 0; kb < g.k_blocks; ++kb) input(begin, end, kb, my_v);
      for (int64_t panel = 0; panel < panels; ++panel)
        product(my_v, begin, end, panel, panel + 1, my_o, points_of(lane));
    });
    return;
  }

  const int64_t group = schedule.group, groups = ceil_div(panels, group);
  std::vector<Loop> loops;
  for (int64_t block = 0; block < schedule.blocks; ++block) {
    const int64_t first = schedule.split(tiles, block, schedule.blocks);
    const int64_t count = schedule.split(tiles, block + 1, schedule.blocks) - first;
    const auto begin_of = [&, first, count](int64_t piece) {
      return first + schedule.split(count, piece, pieces);
    };
    loops.push_back({g.k_blocks * pieces, [&, begin_of](int64_t item, size_t) {
                       const int64_t piece = item / g.k_blocks, kb = item % g.k_blocks;
                       input(begin_of(piece), begin_of(piece + 1), kb, v + piece * v_part);
                     }});
    loops.push_back({groups * pieces, [&, begin_of](int64_t item, size_t lane) {
                       const int64_t piece = item % pieces, panel = item / pieces * group;
                       product(v + piece * v_part, begin_of(piece), begin_of(piece + 1), panel,
                               std::min(panel + group, panels), o + static_cast<int64_t>(lane) * o_part,
                               points_of(lane));
                     }});
  }
  parallel_loops(parallel, loops);
}

bool has_no_result(const ConvolutionProblem& p) { return p.N <= 0 || p.M <= 0 || p.OH() <= 0 || p.OW() <= 0; }

// Calls fn with the algorithm as a type.
template <class F>
auto with_algorithm(ConvAlgorithm algorithm, F&& fn) {
  switch (algorithm) {
    case ConvAlgorithm::kF4x4:
      return fn(F4x4());
    case ConvAlgorithm::kF4x4Rows:
      return fn(F4x4Rows());
    case ConvAlgorithm::kF2x2:
      return fn(F2x2());
    case ConvAlgorithm::kDirect:
      break;
  }
  return fn(Direct());
}

}  // namespace

template <class T>
size_t winograd_conv_weights(const ConvolutionProblem& p, ConvAlgorithm algorithm) {
  return with_algorithm(algorithm, [&](auto a) { return weight_bytes<decltype(a)>(p); });
}

template <class T>
void winograd_conv_prepare(const ConvolutionProblem& p, ConvAlgorithm algorithm, const T* w, void* weights) {
  with_algorithm(algorithm, [&](auto a) { prepare<decltype(a)>(p, w, static_cast<float*>(weights)); });
}

template <class T>
size_t winograd_conv_workspace(const ConvolutionProblem& p, ConvAlgorithm algorithm, size_t lanes) {
  if (has_no_result(p)) return 0;
  return with_algorithm(algorithm, [&](auto a) { return workspace_of<decltype(a)>(p, sizeof(T), lanes); });
}

template <class T>
void winograd_prelu(const ConvolutionProblem& p, ConvAlgorithm algorithm, const T* x, const void* weights,
                    const T* bias, const T* residual, const T* slopes, T* y, Parallel& parallel,
                    void* workspace) {
  if (has_no_result(p)) return;
  with_algorithm(algorithm, [&](auto a) {
    convolve<decltype(a)>(p, x, static_cast<const float*>(weights), bias, residual, slopes, y, parallel,
                          workspace);
  });
}

template <class T>
void winograd_conv(const ConvolutionProblem& p, ConvAlgorithm algorithm, const T* x, const void* weights,
                   const T* bias, const T* residual, T* y, Parallel& parallel, void* workspace) {
  GRAPHOPT_ISA::winograd_prelu<T>(p, algorithm, x, weights, bias, residual, nullptr, y, parallel, workspace);
}

GRAPHOPT_INSTANTIATE_PACKED(winograd_conv, ConvolutionProblem, ConvAlgorithm, float)
GRAPHOPT_INSTANTIATE_PACKED(winograd_conv, ConvolutionProblem, ConvAlgorithm, half)
template void winograd_prelu(const ConvolutionProblem&, ConvAlgorithm, const float*, const void*,
                             const float*, const float*, const float*, float*, Parallel&, void*);
template void winograd_prelu(const ConvolutionProblem&, ConvAlgorithm, const half*, const void*, const half*,
                             const half*, const half*, half*, Parallel&, void*);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
