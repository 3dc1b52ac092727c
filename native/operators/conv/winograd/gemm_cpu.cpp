// Register tiles of Winograd's matrix multiplications, and the multiplication by half-transformed weights.
#include "operators/conv/winograd/gemm_cpu.h"

#include <algorithm>

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// o [kRows][kVectors L] = a [kRows][k] u [k][kVectors L], or o + a u if `adds`. a is blocked: [k / L][kRows][L], with
// a_stride floats between blocks. Prefetches operands of later calls into the second-level cache. next_a has the shape
// of a. next_u has kVectors vectors for each k, with a stride of next_step floats.
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
            if (j * L % kLineFloats == 0) __builtin_prefetch(next_u + j * L, 0, 2);
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

// Transforms a row of half-transformed weights g [count][3][width] to its points [6][count][width].
void transform_row(const float* g, int64_t count, int64_t width, float* to) {
  constexpr auto entry = [](int point, int tap) { return static_cast<float>(F4x4::kG[point][tap]); };
  const int64_t point = point_stride(count * width), next = 3 * count * width;
  for (int64_t k = 0; k < count; ++k, g += 3 * width, to += width) {
    for (int64_t i = 0; i < width; i += L) {
      Vec tap[3];
#pragma GCC unroll 3
      for (int j = 0; j < 3; ++j) {
        tap[j] = load_aligned(g + j * width + i);
        __builtin_prefetch(g + next + j * width + i, 0, 2);
      }
      // Interpolation points p and -p differ only in the sign of the middle tap.
      const Vec even_a = entry(1, 0) * tap[0] + entry(1, 2) * tap[2], odd_a = entry(1, 1) * tap[1];
      const Vec even_b = entry(3, 0) * tap[0] + entry(3, 2) * tap[2], odd_b = entry(3, 1) * tap[1];
      const Vec points[] = {tap[0], even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, tap[2]};
#pragma GCC unroll 6
      for (int j = 0; j < F4x4::kAlpha; ++j) store_aligned(to + j * point + i, points[j]);
    }
  }
}

}  // namespace

void multiply_panel(const float* v, int64_t rows, const float* u, int64_t k, int64_t vectors, float* o,
                    const float* next_v, const float* next_u, bool adds) {
  const int64_t pieces = ceil_div(rows, kMaxRows);
  // The first `parts` pieces share the prefetches of next_u, which are too many for one piece.
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

void multiply_half_transformed(const Geometry& g, const float* v, int64_t count, const float* w,
                               int64_t vectors, float* transformed, float* o, int64_t xi_stride) {
  const int64_t width = vectors * L, next_v = v_stride(g, count);
  // At least one block, which sets the sums to zero if there are no channels.
  const int64_t blocks = std::max<int64_t>(ceil_div(g.k, kRowChannels), 1);
  for (int64_t row = 0; row < F4x4::kAlpha; ++row) {
    for (int64_t k = 0; k < blocks * kRowChannels; k += kRowChannels) {
      const int64_t here = std::min(kRowChannels, g.k - k);
      transform_row(w + (row * g.k + k) * 3 * width, here, width, transformed);
      for (int64_t i = 0; i < F4x4::kAlpha; ++i) {
        const int64_t xi = row * F4x4::kAlpha + i;
        const float *block = v + xi * next_v + k * count, *u = transformed + i * point_stride(here * width);
        multiply_panel(block, count, u, here, vectors, o + xi * xi_stride,
                       i + 1 < F4x4::kAlpha ? block + next_v : block, u, k > 0);
      }
    }
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
