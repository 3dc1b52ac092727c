// The matrix multiplications of transformed tiles by panels of weights. For kernel files only (see cpu/isa.h).
#pragma once

#include "operators/conv/winograd/algorithms_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Input channels whose half-transformed weights are transformed at a time: the results fit in a first-level cache.
constexpr int64_t kRowChannels = 64;

// Returns the stride of points of `floats` floats each. It is an odd number of cache lines, so the points are in
// different sets of a cache.
inline int64_t point_stride(int64_t floats) { return (ceil_div(floats, kLineFloats) | 1) * kLineFloats; }

// Computes o [rows][panel] for one point: `rows` tiles times one panel of weights, added to o if `adds`. Prefetches
// next_v and next_u, the operands of the next call.
void multiply_panel(const float* v, int64_t rows, const float* u, int64_t k, int64_t vectors, float* o,
                    const float* next_v, const float* next_u, bool adds = false);

// Computes o of a panel from half-transformed weights, kRowChannels channels at a time. `transformed`: memory for the
// completely transformed weights of these channels.
void multiply_half_transformed(const Geometry& g, const float* v, int64_t count, const float* w,
                               int64_t vectors, float* transformed, float* o, int64_t xi_stride);

// Transformed tiles, and the panels of output channels that they are multiplied by.
struct TilesByPanels {
  const float* v;
  int64_t count, panel, end;  // `count` tiles; panels [panel, end)
};

// Multiplies the tiles by each panel of `of`. In o, the strides of panels and points are o_stride and xi_stride floats.
// `transformed`: as in multiply_half_transformed.
template <class A>
void multiply_points(const ConvolutionProblem& p, const Geometry& g, const float* weights,
                     const TilesByPanels& of, float* o, int64_t o_stride, int64_t xi_stride,
                     [[maybe_unused]] float* transformed) {
  const auto panel_of = [&](int64_t i) { return weights + i * kPanel * L * g.k * kStoredWeights<A>; };
  if constexpr (kHalfTransformed<A>) {
    for (int64_t i = of.panel; i < of.end; ++i, o += o_stride) {
      multiply_half_transformed(g, of.v, of.count, panel_of(i), panel_vectors(p.M, i), transformed, o,
                                xi_stride);
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

}  // namespace graphopt::cpu::GRAPHOPT_ISA
