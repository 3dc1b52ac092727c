// The number of rows, panels and images that InvertedResidual computes at a time, and its packed weights. For kernel
// files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/cache.h"
#include "cpu/microkernels/gemm.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/inverted_residual/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Adjacent pixels of the depthwise convolution that are computed together.
constexpr int64_t kWindowPixels = 7;
constexpr int64_t kStepBytes = 20 << 10;  // bytes of s for a panel: most of a first-level cache
// Fractions of the second-level cache.
constexpr double kAllRowsOfD = 0.5;   // for d, if all rows of y are computed at a time
constexpr double kBlockOfD = 0.1875;  // for d, if y is computed in blocks of rows
constexpr double kWeights = 0.375;    // for W3
constexpr int64_t kFewestRows = 4;    // fewest pixels of a tile of the third convolution with several threads
constexpr int64_t kEnoughItems = 8;   // items per thread: more would not balance the load better

inline int64_t part_of_cache(double part) {
  return static_cast<int64_t>(part * static_cast<double>(second_level_cache()));
}

// The division of the work.
struct InvertedResidualPlan {
  int64_t panels;         // panels of M
  int64_t images;         // images at a time
  int64_t rows;           // rows of y at a time
  int64_t step;           // rows of y at a time for one panel
  int64_t height, width;  // rows and columns of s, a ring buffer of rows
  int64_t plane;          // elements of one vector of s
  int64_t bands;          // bands of rows, which different threads may compute
  int64_t workers;

  InvertedResidualPlan(const InvertedResidualProblem& p, int64_t all_workers) : workers(all_workers) {
    const int64_t row_of_d = round_up(p.M, L) * p.out[1];  // elements
    panels = ceil_div(p.M, kPanelWidth);
    width = std::max((p.out[1] - 1) * p.stride[1] + p.kernel[1], p.pad[1] + p.in[1]);
    // Returns the size of equal parts that have at most `most` elements.
    const auto part_size = [](int64_t all, int64_t most) {
      return ceil_div(all, ceil_div(all, std::clamp<int64_t>(most, 1, all)));
    };
    rows = p.out[0];
    images = workers == 1
                 ? 1
                 : std::clamp<int64_t>(workers * part_of_cache(kAllRowsOfD) / (4 * row_of_d * rows + 1), 1,
                                       std::max<int64_t>(p.N, 1));
    if (workers == 1 && 4 * row_of_d * rows > part_of_cache(kAllRowsOfD)) {
      rows = part_size(rows, part_of_cache(kBlockOfD) / (4 * row_of_d));
    }
    const int64_t first = std::max<int64_t>(kStepBytes / (4 * width * kPanelWidth) - p.kernel[0], 0);
    step = part_size(rows, first / p.stride[0] + 1);
    height = (step - 1) * p.stride[0] + p.kernel[0];
    plane = height * width * L;
    // The cost in half rows: a band's rows, and half a row on average that it recomputes if another thread
    // computed the previous band.
    bands = parts_of_least_cost(1, std::min(rows, enough(panels * images)), panels * images, workers,
                                [&](int64_t n) { return 2 * ceil_div(rows, n) + 1; });
  }
  // Returns the number of tiles into which the third convolution divides `pixels` pixels. y has panels_of_y panels.
  int64_t tiles(int64_t pixels, int64_t panels_of_y) const {
    const int64_t least = ceil_div(pixels, kMaxRows), most = ceil_div(pixels, kFewestRows);
    return parts_of_least_cost(
        least, std::min(most, std::max(least, enough(panels_of_y * images))), panels_of_y * images, workers,
        [&](int64_t n) { return ceil_div(pixels, n) + 1; });  // each tile also reads the weights
  }
  bool computes_all_rows(const InvertedResidualProblem& p) const { return rows == p.out[0]; }
  // Returns the number of panels in s: one for each thread if all rows are computed at a time, otherwise all panels.
  int64_t slots(const InvertedResidualProblem& p) const { return computes_all_rows(p) ? workers : panels; }
  int64_t s_floats(const InvertedResidualProblem& p) const { return slots(p) * kPanel * plane; }
  // Returns the elements of d for an image.
  int64_t d_floats(const InvertedResidualProblem& p) const { return round_up(p.M, L) * rows * p.out[1]; }

 private:
  int64_t enough(int64_t of_panels) const { return ceil_div(kEnoughItems * workers, of_panels); }
};

// The progress of the first two convolutions in a panel of s.
struct alignas(64) BandState {
  // The item that continues the rows in s: its index, counted through all loops of the first two convolutions.
  int64_t next = -1;
  bool cleared = false;  // the padding columns of s are zeros
};

// Packed weights: panels of W1 [C][M], the window [vectors of M][taps][L], panels of W3 [M][O], and the biases.
struct PackedWeights {
  float *expand, *window, *project, *expand_bias, *window_bias, *project_bias;

  PackedWeights(const InvertedResidualProblem& p, Workspace& memory) {
    const int64_t M = round_up(p.M, L), O = round_up(p.O, L);
    expand = memory.take<float>(p.C * M);
    window = memory.take<float>(p.taps() * M);
    project = memory.take<float>(p.M * O);
    expand_bias = memory.take<float>(M);
    window_bias = memory.take<float>(M);
    project_bias = memory.take<float>(O);
  }
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
