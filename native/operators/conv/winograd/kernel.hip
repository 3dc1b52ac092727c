// WinogradConv[Add][act]: a 3x3 convolution with bias, residual and activation, for NCHW tensors in float32 or float16.
// Transforms and GEMMs are float32 for both.
//
// The algorithm is Winograd F(m x m, 3 x 3) with m = 4 or 2 (A. Lavin and S. Gray, "Fast algorithms for convolutional
// neural networks", 2016). A tile has t = (m + 2)^2 positions. Three launches process a chunk of P tiles:
//   input transform   V [t, C, P]   from X
//   GEMMs             Z [t, M, P] = U [t, C, M]^T V   on float32 matrix units if available
//   output transform  Y = act(A^T Z A + bias + residual)
// U is computed once if W is constant. The GEMMs need t / (9 m^2) of the FLOPs of the direct convolution (1 / 4 for m =
// 4, 1 / 2.25 for m = 2) and are compute-bound. The transforms are memory-bound: V has t / m^2 floats for each element
// of X, and Z has t / m^2 floats for each element of Y. On an H200 in float32 (docs/measurements/gpu_h200.md), the
// kernels are 2.9 times as fast as cuDNN: the geometric mean of 13 shapes. They reach 138 TFLOP/s, counted in FLOPs of
// the direct convolution.
//
// The other algorithm of this file is the implicit GEMM: Y = W [M, 9 C] x patches [9 C, pixels], with patches gathered
// into LDS. choose_conv in operators/conv/winograd/plan.cpp selects the algorithm with the lowest estimated time.
#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "gemm/pipelines/vector.h"
#include "operators/conv/winograd/args.h"

namespace graphopt::hip {

// The one-dimensional transforms B^T d, G g and A^T z of F(4, 3) (interpolation points 0, 1, -1, 2, -2, infinity) and
// of F(2, 3).
template <int kOut>
struct Winograd;

template <>
struct Winograd<4> {
  DEVICE static void input(const float (&d)[6], float (&v)[6]) {
    const float a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1], c = d[4] - d[2], e = 2.0f * (d[3] - d[1]);
    v[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
    v[1] = a + b;
    v[2] = a - b;
    v[3] = c + e;
    v[4] = c - e;
    v[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];
  }
  DEVICE static void filter(const float (&g)[3], float (&u)[6]) {
    const float a = g[0] + g[2], b = g[0] + 4.0f * g[2];
    u[0] = 0.25f * g[0];
    u[1] = (-1.0f / 6.0f) * (a + g[1]);
    u[2] = (-1.0f / 6.0f) * (a - g[1]);
    u[3] = (1.0f / 24.0f) * (b + 2.0f * g[1]);
    u[4] = (1.0f / 24.0f) * (b - 2.0f * g[1]);
    u[5] = g[2];
  }
  DEVICE static void output(const float (&z)[6], float (&y)[4]) {
    const float a = z[1] + z[2], b = z[1] - z[2], c = z[3] + z[4], d = z[3] - z[4];
    y[0] = z[0] + a + c;
    y[1] = b + 2.0f * d;
    y[2] = a + 4.0f * c;
    y[3] = b + 8.0f * d + z[5];
  }
};

template <>
struct Winograd<2> {
  DEVICE static void input(const float (&d)[4], float (&v)[4]) {
    v[0] = d[0] - d[2];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[1] - d[3];
  }
  DEVICE static void filter(const float (&g)[3], float (&u)[4]) {
    const float a = g[0] + g[2];
    u[0] = g[0];
    u[1] = 0.5f * (a + g[1]);
    u[2] = 0.5f * (a - g[1]);
    u[3] = g[2];
  }
  DEVICE static void output(const float (&z)[4], float (&y)[2]) {
    y[0] = z[0] + z[1] + z[2];
    y[1] = z[1] - z[2] - z[3];
  }
};

// W [M, C, 3, 3] -> U [t, rows, columns], rows >= C, columns >= M, padded with zeros. One work-item for each (c, m).
template <class T, int kOut>
DEVICE void winograd_filter(const WinogradFilterArgs& args) {
  const T* w = args.w;
  float* u = args.u;
  const int32_t C = args.C, rows = args.rows;
  const Divisor& columns = args.columns;
  constexpr int kIn = kOut + 2;
  const uint32_t i = work_item(kWinogradThreads);
  if (i >= static_cast<uint32_t>(rows) * columns.d) return;
  const auto c = static_cast<int>(divide(i, columns)),
             m = static_cast<int>(i - divide(i, columns) * columns.d);
  float columns_done[kIn][3] = {};
  if (c < C && m < args.M) {
    const T* g = w + (static_cast<size_t>(m) * static_cast<size_t>(C) + static_cast<size_t>(c)) * 9;
    UNROLL for (int s = 0; s < 3; ++s) {
      const float line[3] = {to_float(g[s]), to_float(g[3 + s]), to_float(g[6 + s])};
      float out[kIn];
      Winograd<kOut>::filter(line, out);
      UNROLL for (int r = 0; r < kIn; ++r) columns_done[r][s] = out[r];
    }
  }
  const size_t plane = static_cast<size_t>(rows) * columns.d;
  UNROLL for (int r = 0; r < kIn; ++r) {
    float out[kIn];
    Winograd<kOut>::filter(columns_done[r], out);
    UNROLL for (int s = 0; s < kIn; ++s) u[static_cast<size_t>(r * kIn + s) * plane + i] = out[s];
  }
}

struct TileAt {
  int n, row, column;
};
DEVICE TileAt tile_at(const Tiles& tiles, uint32_t p) {
  const uint32_t t = tiles.first + p;
  const uint32_t n = divide(t, tiles.per_image);
  const uint32_t rest = t - n * tiles.per_image.d;
  const uint32_t row = divide(rest, tiles.across);
  return {static_cast<int>(n), static_cast<int>(row), static_cast<int>(rest - row * tiles.across.d)};
}

// Four adjacent elements of a row of Y.
template <class T>
struct alignas(4 * sizeof(T)) Quad {
  T v[4];
};
template <class T>
DEVICE Quad<T> load_quad(const T* p) {
  return *reinterpret_cast<const Quad<T>*>(p);
}
template <class T>
DEVICE void store_quad(T* p, const Quad<T>& x) {
  *reinterpret_cast<Quad<T>*>(p) = x;
}

template <class T, int kOut>
DEVICE void winograd_input(const WinogradInputArgs& args) {
  const T* x = args.x;
  float* v = args.v;
  const int32_t C = args.image.C, H = args.image.H, W = args.image.W;
  const Tiles& tiles = args.tiles;
  const Divisor& stride = args.stride;
  constexpr int kIn = kOut + 2;
  const uint32_t i = work_item(kWinogradThreads);
  const size_t plane = static_cast<size_t>(C) * stride.d;
  if (i >= plane) return;
  const uint32_t c = divide(i, stride), p = i - c * stride.d;
  float d[kIn][kIn];
  if (p < tiles.count) {
    const TileAt tile = tile_at(tiles, p);
    const int top = tile.row * kOut - args.image.pad_top, left = tile.column * kOut - args.image.pad_left;
    const T* image = x + (static_cast<size_t>(tile.n) * static_cast<size_t>(C) + c) *
                             (static_cast<size_t>(H) * static_cast<size_t>(W));
    UNROLL for (int r = 0; r < kIn; ++r) {
      const int h = top + r;
      const bool inside = h >= 0 && h < H;
      const T* line = image + static_cast<ptrdiff_t>(h) * W + left;
      UNROLL for (int s = 0; s < kIn; ++s) {
        d[r][s] = inside && left + s >= 0 && left + s < W ? to_float(line[s]) : 0.0f;
      }
    }
  } else {
    UNROLL for (int r = 0; r < kIn; ++r) { UNROLL for (int s = 0; s < kIn; ++s) d[r][s] = 0.0f; }
  }
  UNROLL for (int s = 0; s < kIn; ++s) {
    float line[kIn], out[kIn];
    UNROLL for (int r = 0; r < kIn; ++r) line[r] = d[r][s];
    Winograd<kOut>::input(line, out);
    UNROLL for (int r = 0; r < kIn; ++r) d[r][s] = out[r];
  }
  UNROLL for (int r = 0; r < kIn; ++r) {
    float out[kIn];
    Winograd<kOut>::input(d[r], out);
    UNROLL for (int s = 0; s < kIn; ++s) v[static_cast<size_t>(r * kIn + s) * plane + i] = out[s];
  }
}

template <class Gemm>
DEVICE void winograd_gemm(const WinogradGemmArgs& args) {
  SHARED(lds, typename Gemm::Lds);
  const float *u = args.u, *v = args.v;
  float* z = args.z;
  const int32_t M = args.M, C = args.C, columns = args.columns, stride = args.stride;
  const auto position = static_cast<size_t>(block_z());
  const int first_m = block_y() * Gemm::kM, first_p = block_x() * Gemm::kN;
  u +=
      position * static_cast<size_t>(args.rows) * static_cast<size_t>(columns) + static_cast<size_t>(first_m);
  v += position * static_cast<size_t>(C) * static_cast<size_t>(stride) + static_cast<size_t>(first_p);
  z += position * static_cast<size_t>(M) * static_cast<size_t>(stride);
  Gemm gemm;
  gemm.run_packs(
      lds, args.rows,
      [&](int k, int m) { return load_pack(u + static_cast<size_t>(k) * static_cast<size_t>(columns) + m); },
      [&](int k, int n) {
        Pack<float> zero = {};
        return k < C && first_p + n < stride
                   ? load_pack(v + static_cast<size_t>(k) * static_cast<size_t>(stride) + n)
                   : zero;
      });
  gemm.for_each([&](int m, int n, const float (&values)[4]) {
    m += first_m;
    n += first_p;
    if (m >= M || n >= stride) return;
    const Pack<float> out = {{values[0], values[1], values[2], values[3]}};
    store_pack(z + static_cast<size_t>(m) * static_cast<size_t>(stride) + n, out);
  });
}

template <class T, int kOut>
DEVICE void winograd_output(const WinogradOutputArgs& args) {
  const float* z = args.z;
  const T *bias = args.bias, *residual = args.residual;
  T* y = args.y;
  const int32_t M = args.M, OH = args.OH, OW = args.OW;
  const Tiles& tiles = args.tiles;
  const Divisor& stride = args.stride;
  constexpr int kIn = kOut + 2;
  const uint32_t i = work_item(kWinogradThreads);
  const size_t plane = static_cast<size_t>(M) * stride.d;
  if (i >= plane) return;
  const uint32_t m = divide(i, stride), p = i - m * stride.d;
  if (p >= tiles.count) return;
  float half_done[kOut][kIn];
  UNROLL for (int s = 0; s < kIn; ++s) {
    float line[kIn], out[kOut];
    UNROLL for (int r = 0; r < kIn; ++r) line[r] = z[static_cast<size_t>(r * kIn + s) * plane + i];
    Winograd<kOut>::output(line, out);
    UNROLL for (int r = 0; r < kOut; ++r) half_done[r][s] = out[r];
  }
  const TileAt tile = tile_at(tiles, p);
  const float b = to_float(bias[m]);
  const size_t image = (static_cast<size_t>(tile.n) * static_cast<size_t>(M) + m) *
                       (static_cast<size_t>(OH) * static_cast<size_t>(OW));
  const int top = tile.row * kOut, left = tile.column * kOut;
  UNROLL for (int r = 0; r < kOut; ++r) {
    if (top + r >= OH) continue;
    float out[kOut];
    Winograd<kOut>::output(half_done[r], out);
    UNROLL for (int s = 0; s < kOut; ++s) out[s] += b;
    const size_t at =
        image + static_cast<size_t>(top + r) * static_cast<size_t>(OW) + static_cast<size_t>(left);
    if constexpr (kOut == 4) {
      if (args.vectors != 0) {
        if (residual != nullptr) {
          const Quad<T> add = load_quad(residual + at);
          UNROLL for (int s = 0; s < kOut; ++s) out[s] += to_float(add.v[s]);
        }
        activate(args.act, out);
        Quad<T> quad;
        UNROLL for (int s = 0; s < kOut; ++s) quad.v[s] = from_float<T>(out[s]);
        store_quad(y + at, quad);
        continue;
      }
    }
    if (residual != nullptr) {
      UNROLL for (int s = 0; s < kOut; ++s) {
        if (left + s < OW) out[s] += to_float(residual[at + static_cast<size_t>(s)]);
      }
    }
    activate(args.act, out);
    UNROLL for (int s = 0; s < kOut; ++s) {
      if (left + s < OW) y[at + static_cast<size_t>(s)] = from_float<T>(out[s]);
    }
  }
}

template <class T>
DEVICE void implicit_filter(const ImplicitFilterArgs& args) {
  const T* w = args.w;
  float* u = args.u;
  const int32_t depth = args.depth;
  const Divisor& columns = args.columns;
  const uint32_t i = work_item(kWinogradThreads);
  if (i >= static_cast<uint32_t>(args.rows) * columns.d) return;
  const auto k = static_cast<int>(divide(i, columns)),
             m = static_cast<int>(i - divide(i, columns) * columns.d);
  u[i] = k < depth && m < args.M
             ? to_float(w[static_cast<size_t>(m) * static_cast<size_t>(depth) + static_cast<size_t>(k)])
             : 0.0f;
}

template <class Gemm, class T>
DEVICE void implicit_gemm(const ImplicitGemmArgs& args) {
  SHARED(lds, typename Gemm::Lds);
  const float* u = args.u;
  const T *x = args.x, *bias = args.bias, *residual = args.residual;
  T* y = args.y;
  const int32_t M = args.M, C = args.image.C, H = args.image.H, W = args.image.W, columns = args.columns;
  const uint32_t pixels = args.pixels;
  const Divisor &per_image = args.per_image, &across = args.across;
  const int first_m = block_y() * Gemm::kM;
  const uint32_t first_n = static_cast<uint32_t>(block_x()) * Gemm::kN;
  const size_t plane = static_cast<size_t>(H) * static_cast<size_t>(W);
  const auto pixel_at = [&](uint32_t n) {
    const uint32_t image = divide(n, per_image);
    const uint32_t rest = n - image * per_image.d;
    const uint32_t row = divide(rest, across);
    return TileAt{static_cast<int>(image), static_cast<int>(row), static_cast<int>(rest - row * across.d)};
  };
  // This work-item loads the same columns for every k.
  constexpr int kAcross = Gemm::kN / 4;
  const T* image[4];
  int top[4], left[4];
  UNROLL for (int j = 0; j < 4; ++j) {
    const uint32_t n = first_n + static_cast<uint32_t>(thread_x() % kAcross * 4 + j);
    const TileAt at = pixel_at(n < pixels ? n : 0);
    image[j] = x + static_cast<size_t>(at.n) * static_cast<size_t>(C) * plane;
    top[j] = n < pixels ? at.row - args.image.pad_top : -4;  // outside for every tap
    left[j] = at.column - args.image.pad_left;
  }
  Gemm gemm;
  gemm.run_packs(
      lds, args.rows,
      [&](int k, int m) {
        return load_pack(u + static_cast<size_t>(k) * static_cast<size_t>(columns) + first_m + m);
      },
      [&](int k, int) {
        const int c = k / 9, tap = k - c * 9, r = tap / 3, s = tap - r * 3;
        Pack<float> pack;
        UNROLL for (int j = 0; j < 4; ++j) {
          const int h = top[j] + r, w = left[j] + s;
          const bool inside = c < C && h >= 0 && h < H && w >= 0 && w < W;
          pack.v[j] =
              inside ? to_float(image[j][static_cast<size_t>(c) * plane + static_cast<size_t>(h * W + w)])
                     : 0.0f;
        }
        return pack;
      });
  gemm.for_each([&](int m, int n, float (&values)[4]) {
    m += first_m;
    if (m >= M) return;
    const float b = to_float(bias[m]);
    size_t at[4];
    UNROLL for (int j = 0; j < 4; ++j) {
      const uint32_t pixel = first_n + static_cast<uint32_t>(n + j);
      const uint32_t i = divide(pixel, per_image);
      at[j] = (static_cast<size_t>(i) * static_cast<size_t>(M) + static_cast<size_t>(m)) * per_image.d +
              (pixel - i * per_image.d);
      values[j] += b;
      if (residual != nullptr && pixel < pixels) values[j] += to_float(residual[at[j]]);
    }
    activate(args.act, values);
    UNROLL for (int j = 0; j < 4; ++j) {
      if (first_n + static_cast<uint32_t>(n + j) < pixels) y[at[j]] = from_float<T>(values[j]);
    }
  });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(winograd_filter_f4, (winograd_filter<T, 4>), kWinogradThreads, WinogradFilterArgs, w, u)
FLOAT_KERNELS(winograd_filter_f2, (winograd_filter<T, 2>), kWinogradThreads, WinogradFilterArgs, w, u)
FLOAT_KERNELS(winograd_input_f4, (winograd_input<T, 4>), kWinogradThreads, WinogradInputArgs, x, v)
FLOAT_KERNELS(winograd_input_f2, (winograd_input<T, 2>), kWinogradThreads, WinogradInputArgs, x, v)
FLOAT_KERNELS(winograd_output_f4, (winograd_output<T, 4>), kWinogradThreads, WinogradOutputArgs, z, bias,
              residual, y)
FLOAT_KERNELS(winograd_output_f2, (winograd_output<T, 2>), kWinogradThreads, WinogradOutputArgs, z, bias,
              residual, y)
FLOAT_KERNELS(implicit_filter, implicit_filter<T>, kWinogradThreads, ImplicitFilterArgs, w, u)

// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define GEMM_KERNELS(name, type, groups, ...)                                                             \
  KERNEL_OF(winograd_gemm_##name##_f32, winograd_gemm<Sgemm<GemmTile::k##name##_##type>>,                 \
            LaunchBounds(Sgemm<GemmTile::k##name##_##type>::kThreads, groups), WinogradGemmArgs, u, v, z) \
  FLOAT_KERNELS(implicit_gemm_##name, (implicit_gemm<Sgemm<GemmTile::k##name##_##type>, T>),              \
                Sgemm<GemmTile::k##name##_##type>::kThreads, ImplicitGemmArgs, u, x, bias, residual, y)
GEMM_VECTOR_TILES(GEMM_KERNELS)
GEMM_VECTOR_F16_TILES(GEMM_KERNELS)
