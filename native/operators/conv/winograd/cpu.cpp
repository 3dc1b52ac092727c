// 3x3 convolution: gathers or Winograd-transforms the input, multiplies, transforms the output, and applies the
// epilogue.
//
// A tile is MT x MT output pixels for Winograd's F(MT x MT, 3x3), and one pixel for the direct algorithm. Every
// algorithm consists of kAlpha^2 independent GEMMs [tiles, K] x [K, M], one for each point (element of a transformed
// tile). For Winograd, kAlpha = MT + 2 and K = C; for the direct algorithm, kAlpha = 1 and K = 9 C. All arrays are
// blocked by L, the number of floats in a vector:
//
//   v [kAlpha^2][K / L][tiles][L]      input, transformed; one vector holds L channels of one tile
//   u [M / panel][kAlpha^2][K][panel]  weights, transformed; a panel is kPanel vectors of output channels
//     [M / panel][kAlpha][K][3][panel] weights, half-transformed: half as many values
//   o [kAlpha^2][tiles][panel]         sums of one panel; they remain in the second-level cache
#include "operators/conv/winograd/cpu.h"

#include <algorithm>
#include <vector>

#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/winograd/schedule_cpu.h"
#include "operators/conv/winograd/transforms_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

template <class A>
size_t workspace_of(const ConvolutionProblem& p, size_t element_size, size_t workers) {
  const WinogradSchedule<A> schedule(p, element_size, workers);
  Workspace workspace(nullptr);
  schedule.take_v(workspace);
  schedule.take_o(workspace);
  schedule.take_transformed(workspace);
  return workspace.bytes();
}

template <class A, class T>
void convolve(const ConvolutionProblem& p, const T* x, const float* weights, const T* bias, const T* residual,
              const T* slopes, T* y, Parallel& parallel, void* memory) {
  const WinogradSchedule<A> schedule(p, sizeof(T), parallel.workers());
  const Geometry& g = schedule.g;
  const int64_t tiles = schedule.tiles, panels = schedule.panels;
  const WinogradOutput<T> out{bias, residual, slopes, y, schedule.stream};
  Workspace workspace(memory);
  float* v = schedule.take_v(workspace);
  float* o = schedule.take_o(workspace);
  float* transformed = schedule.take_transformed(workspace);

  const auto input = [&](int64_t begin, int64_t end, int64_t kb, float* v) {
    if constexpr (A::kAlpha == 1) {
      gather_input(p, g, x, begin, end, kb, v);
    } else {
      transform_input<typename A::Transforms>(p, g, x, begin, end, kb, v);
    }
  };
  const auto multiply = [&](const float* v, int64_t begin, int64_t end, int64_t panel, int64_t panel_end,
                            float* o, float* transformed) {
    const int64_t count = end - begin, xi_stride = (count * kPanel | 1) * L;
    multiply_points<A>(p, g, weights, {v, count, panel, panel_end}, o, schedule.o_floats(count), xi_stride,
                       transformed);
    for (int64_t i = panel; i < panel_end; ++i) {
      transform_output<typename A::Transforms>(p, g, o + (i - panel) * schedule.o_floats(count), xi_stride,
                                               begin, end, i * kPanel * L, panel_vectors(p.M, i), out);
    }
#if defined(__AVX2__)
    if (out.stream) _mm_sfence();
#endif
  };

  const auto transformed_of = [&](size_t worker) {
    return transformed + static_cast<int64_t>(worker) * schedule.transformed_floats();
  };
  const int64_t v_part = schedule.v_floats(schedule.largest);
  const int64_t o_part = schedule.o_floats(schedule.largest) * schedule.group;
  const int64_t pieces = schedule.pieces;
  if (schedule.per_worker) {
    parallel_for(parallel, pieces, [&](int64_t piece, size_t worker) {
      const int64_t begin = schedule.split(tiles, piece, pieces);
      const int64_t end = schedule.split(tiles, piece + 1, pieces);
      float* my_v = v + static_cast<int64_t>(worker) * v_part;
      float* my_o = o + static_cast<int64_t>(worker) * o_part;
      for (int64_t kb = 0; kb < g.k_blocks; ++kb) input(begin, end, kb, my_v);
      for (int64_t panel = 0; panel < panels; ++panel)
        multiply(my_v, begin, end, panel, panel + 1, my_o, transformed_of(worker));
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
    loops.push_back({groups * pieces, [&, begin_of](int64_t item, size_t worker) {
                       const int64_t piece = item % pieces, panel = item / pieces * group;
                       multiply(v + piece * v_part, begin_of(piece), begin_of(piece + 1), panel,
                                std::min(panel + group, panels), o + static_cast<int64_t>(worker) * o_part,
                                transformed_of(worker));
                     }});
  }
  parallel_loops(parallel, loops);
}

bool has_no_result(const ConvolutionProblem& p) { return p.N <= 0 || p.M <= 0 || p.OH() <= 0 || p.OW() <= 0; }

// Calls fn with an object of the algorithm's type.
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
size_t winograd_conv_workspace(const ConvolutionProblem& p, ConvAlgorithm algorithm, size_t workers) {
  if (has_no_result(p)) return 0;
  return with_algorithm(algorithm, [&](auto a) { return workspace_of<decltype(a)>(p, sizeof(T), workers); });
}

template <class T>
void winograd_conv(const ConvolutionProblem& p, ConvAlgorithm algorithm, const T* x, const void* weights,
                   const T* bias, const T* residual, const T* slopes, T* y, Parallel& parallel,
                   void* workspace) {
  if (has_no_result(p)) return;
  with_algorithm(algorithm, [&](auto a) {
    convolve<decltype(a)>(p, x, static_cast<const float*>(weights), bias, residual, slopes, y, parallel,
                          workspace);
  });
}

GRAPHOPT_INSTANTIATE(winograd_conv_weights)
GRAPHOPT_INSTANTIATE(winograd_conv_prepare)
GRAPHOPT_INSTANTIATE(winograd_conv_workspace)
GRAPHOPT_INSTANTIATE(winograd_conv)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
