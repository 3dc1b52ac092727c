// How many rows, panels and images of an inverted residual are computed at a time, and its packed weights.
// For kernel files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/cache.h"
#include "cpu/microkernels/product.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/inverted_residual/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

constexpr int64_t kTogether = 7;          // pixels of the window's convolution: as many sums
constexpr int64_t kStepBytes = 20 << 10;  // of s for a panel: most of a first-level cache
// Of the second-level cache.
constexpr double kWhole = 0.5;     // d, where all rows of y are computed at a time
constexpr double kBlock = 0.1875;  // where they are not
constexpr double kWeights = 0.375;
constexpr int64_t kFewestRows = 4;   // of a tile of the third convolution, where several lanes share them
constexpr int64_t kEnoughItems = 8;  // of a lane: more would divide no better
constexpr int64_t kStoring = 4;      // what bounds and a store cost beside a multiplication

inline int64_t part_of_cache(double part) {
  return static_cast<int64_t>(part * static_cast<double>(second_level_cache()));
}

// How y is computed.
struct InvertedResidualPlan {
  int64_t panels;         // of M
  int64_t images;         // at a time
  int64_t rows;           // of y at a time
  int64_t step;           // of these, for one panel at a time
  int64_t height, width;  // of s, whose rows are used again and again
  int64_t plane;          // numbers of one vector of s
  int64_t bands;          // of rows, which different lanes may compute
  int64_t lanes;

  InvertedResidualPlan(const InvertedResidualProblem& p, int64_t all_lanes) : lanes(all_lanes) {
    const int64_t numbers = round_up(p.M, L) * p.out[1];  // of a row of d
    panels = ceil_div(p.M, kPanelWidth);
    width = std::max((p.out[1] - 1) * p.stride[1] + p.kernel[1], p.pad[1] + p.in[1]);
    const auto parts_of = [](int64_t all, int64_t most) {
      return ceil_div(all, ceil_div(all, std::clamp<int64_t>(most, 1, all)));
    };
    rows = p.out[0];
    images = lanes == 1 ? 1
                        : std::clamp<int64_t>(lanes * part_of_cache(kWhole) / (4 * numbers * rows + 1), 1,
                                              std::max<int64_t>(p.N, 1));
    if (lanes == 1 && 4 * numbers * rows > part_of_cache(kWhole)) {
      rows = parts_of(rows, part_of_cache(kBlock) / (4 * numbers));
    }
    const int64_t first = std::max<int64_t>(kStepBytes / (4 * width * kPanelWidth) - p.kernel[0], 0);
    step = parts_of(rows, first / p.stride[0] + 1);
    height = (step - 1) * p.stride[0] + p.kernel[0];
    plane = height * width * L;
    // A band that another lane takes repeats rows: half a row for each, on average.
    bands = parts_of_least_cost(1, std::min(rows, enough(panels * images)), panels * images, lanes,
                                [&](int64_t n) { return 2 * ceil_div(rows, n) + 1; });
  }
  // How many tiles `pixels` pixels of the third convolution are, for panels of O.
  int64_t tiles(int64_t pixels, int64_t panels_of_y) const {
    const int64_t least = ceil_div(pixels, kMaxRows), most = ceil_div(pixels, kFewestRows);
    return parts_of_least_cost(
        least, std::min(most, std::max(least, enough(panels_of_y * images))), panels_of_y * images, lanes,
        [&](int64_t n) { return ceil_div(pixels, n) + 1; });  // a step reads weights, too
  }
  // s is of one panel for each lane where all rows are computed at a time, or of all panels.
  bool whole(const InvertedResidualProblem& p) const { return rows == p.out[0]; }
  int64_t slots(const InvertedResidualProblem& p) const { return whole(p) ? lanes : panels; }
  int64_t s_numbers(const InvertedResidualProblem& p) const { return slots(p) * kPanel * plane; }
  // Of an image.
  int64_t d_numbers(const InvertedResidualProblem& p) const { return round_up(p.M, L) * rows * p.out[1]; }

 private:
  int64_t enough(int64_t of_panels) const { return ceil_div(kEnoughItems * lanes, of_panels); }
};

// How far a thread is in the first two convolutions.
struct alignas(64) BandState {
  int64_t next = -1;     // the item, of all loops, whose rows go on where the last ones ended
  bool cleared = false;  // s beside its rows
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
