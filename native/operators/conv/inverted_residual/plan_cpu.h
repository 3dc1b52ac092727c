// The number of rows, panels and images of an inverted residual that are computed at a time, and its packed weights.
// For kernel files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/cache.h"
#include "cpu/microkernels/gemm.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/inverted_residual/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

constexpr int64_t kTogether = 7;          // pixels of the depthwise convolution that are summed together
constexpr int64_t kStepBytes = 20 << 10;  // bytes of s for a panel: most of a first-level cache
// Fractions of the second-level cache.
constexpr double kWhole = 0.5;       // for d, if all rows of y are computed at a time
constexpr double kBlock = 0.1875;    // for d, if y is computed in blocks of rows
constexpr double kWeights = 0.375;   // for W3
constexpr int64_t kFewestRows = 4;   // fewest rows of a tile of the third convolution, if threads share them
constexpr int64_t kEnoughItems = 8;  // items per thread: more would not balance the load better

inline int64_t part_of_cache(double part) {
  return static_cast<int64_t>(part * static_cast<double>(second_level_cache()));
}

// The division of y.
struct InvertedResidualPlan {
  int64_t panels;         // panels of M
  int64_t images;         // images at a time
  int64_t rows;           // rows of y at a time
  int64_t step;           // rows of y at a time for one panel
  int64_t height, width;  // size of s, a ring buffer of rows
  int64_t plane;          // elements of one vector of s
  int64_t bands;          // bands of rows, which different threads may compute
  int64_t workers;

  InvertedResidualPlan(const InvertedResidualProblem& p, int64_t all_workers) : workers(all_workers) {
    const int64_t numbers = round_up(p.M, L) * p.out[1];  // elements of a row of d
    panels = ceil_div(p.M, kPanelWidth);
    width = std::max((p.out[1] - 1) * p.stride[1] + p.kernel[1], p.pad[1] + p.in[1]);
    const auto parts_of = [](int64_t all, int64_t most) {
      return ceil_div(all, ceil_div(all, std::clamp<int64_t>(most, 1, all)));
    };
    rows = p.out[0];
    images = workers == 1 ? 1
                          : std::clamp<int64_t>(workers * part_of_cache(kWhole) / (4 * numbers * rows + 1), 1,
                                                std::max<int64_t>(p.N, 1));
    if (workers == 1 && 4 * numbers * rows > part_of_cache(kWhole)) {
      rows = parts_of(rows, part_of_cache(kBlock) / (4 * numbers));
    }
    const int64_t first = std::max<int64_t>(kStepBytes / (4 * width * kPanelWidth) - p.kernel[0], 0);
    step = parts_of(rows, first / p.stride[0] + 1);
    height = (step - 1) * p.stride[0] + p.kernel[0];
    plane = height * width * L;
    // A band on another thread recomputes rows: half a row for each band, on average.
    bands = parts_of_least_cost(1, std::min(rows, enough(panels * images)), panels * images, workers,
                                [&](int64_t n) { return 2 * ceil_div(rows, n) + 1; });
  }
  // The number of tiles into which the third convolution divides `pixels` pixels. y has panels_of_y panels.
  int64_t tiles(int64_t pixels, int64_t panels_of_y) const {
    const int64_t least = ceil_div(pixels, kMaxRows), most = ceil_div(pixels, kFewestRows);
    return parts_of_least_cost(
        least, std::min(most, std::max(least, enough(panels_of_y * images))), panels_of_y * images, workers,
        [&](int64_t n) { return ceil_div(pixels, n) + 1; });  // each tile also reads the weights
  }
  bool whole(const InvertedResidualProblem& p) const { return rows == p.out[0]; }
  // The number of panels in s: one for each thread if all rows are computed at a time, else all panels.
  int64_t slots(const InvertedResidualProblem& p) const { return whole(p) ? workers : panels; }
  int64_t s_numbers(const InvertedResidualProblem& p) const { return slots(p) * kPanel * plane; }
  // Elements of d for an image.
  int64_t d_numbers(const InvertedResidualProblem& p) const { return round_up(p.M, L) * rows * p.out[1]; }

 private:
  int64_t enough(int64_t of_panels) const { return ceil_div(kEnoughItems * workers, of_panels); }
};

// The progress of a thread in the first two convolutions.
struct alignas(64) BandState {
  int64_t next = -1;     // the item, counted over all loops, that continues the last item's rows
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
