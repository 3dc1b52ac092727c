// The phases of a transposed convolution, and the grid of positions that they share (see cpu.cpp). For kernel files
// only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cpu/microkernels/gemm.h"
#include "operators/conv/convolution/problem.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

constexpr int64_t kMostPhases = 16;      // maximum number of phases (over all axes) in a set
constexpr int64_t kMostBundleRows = 64;  // maximum number of rows of a bundle with several channels
constexpr int64_t kFullRows = 4;         // a block of fewer rows takes as long as one of this number

// The taps along an axis that contribute to elements of y with this remainder. `distances`: for each tap, the distance
// in x[q - distance] for y[q * stride + remainder - pad] (cpu.cpp).
struct AxisPhase {
  int64_t remainder;
  std::vector<int64_t> taps, distances;
};

// Returns the phases of an axis that have taps.
inline std::vector<AxisPhase> phases_of(const ConvolutionProblem& p, size_t axis) {
  std::map<int64_t, AxisPhase> found;
  for (int64_t k = 0; k < p.kernel[axis]; ++k) {
    const int64_t place = k * p.dilation[axis], remainder = place % p.stride[axis];
    AxisPhase& phase = found[remainder];
    phase.remainder = remainder;
    phase.taps.push_back(k);
    phase.distances.push_back(place / p.stride[axis]);
  }
  std::vector<AxisPhase> phases;
  for (auto& [remainder, phase] : found) phases.push_back(std::move(phase));
  return phases;
}

// Phases with the same distances: rows of one GEMM.
struct PhaseGemm {
  std::vector<int64_t> distances;          // [tap], indices into the distances of the plan
  std::vector<std::vector<int64_t>> taps;  // [phase][tap], indices into the kernel
};

// The phases of a row of y along the last axis.
struct PhaseRow {
  int64_t depth, height;        // remainders along the first two axes
  std::vector<int64_t> phases;  // indices in the set, in the order of the remainders
};

// Phases that are computed together. The indices of a GEMM's phases are consecutive.
struct PhaseSet {
  std::vector<PhaseGemm> gemms;
  std::vector<PhaseRow> rows;
  int64_t phases = 0, taps = 0;  // number of phases, and of the taps of all phases
};

// The phases of a set for `channels` channels of a group of y, from channel `first` on.
struct ChannelBundle {
  size_t set;
  int64_t first, channels;
  int64_t weights;  // offset in the group's weights
};

inline int64_t phase_blocks(int64_t rows) { return ceil_div(rows, kMaxRows); }

struct PhasePlan {
  std::vector<int64_t> remainders;                  // of the phases along the last axis
  bool has_all_columns;                             // all remainders of the last axis have taps
  bool covers_y;                                    // each element of y has taps
  std::vector<ConvolutionProblem::Axes> distances;  // all distances of the phases
  std::vector<PhaseSet> sets;
  std::vector<ChannelBundle> bundles;
  int64_t most_rows = 0;  // the largest number of rows (channels times phases) of a bundle

  explicit PhasePlan(const ConvolutionProblem& p) {
    const std::vector<AxisPhase> d = phases_of(p, 0), h = phases_of(p, 1), w = phases_of(p, 2);
    for (const AxisPhase& phase : w) remainders.push_back(phase.remainder);
    const auto all = [&p](const std::vector<AxisPhase>& phases, size_t axis) {
      return static_cast<int64_t>(phases.size()) == p.stride[axis];
    };
    has_all_columns = all(w, 2);
    covers_y = has_all_columns && all(d, 0) && all(h, 1);
    const bool together = static_cast<int64_t>(d.size() * h.size() * w.size()) <= kMostPhases;
    if (together) sets.emplace_back();
    for (const AxisPhase& depth : d) {
      for (const AxisPhase& height : h) {
        if (!together) sets.emplace_back();
        add_row(p, sets.back(), depth, height, w);
      }
    }
    int64_t weights = 0;
    for (size_t i = 0; i < sets.size(); ++i) {
      number_phases(sets[i]);
      const int64_t parts = ceil_div(p.M, channels_of_bundle(p, sets[i]));
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = p.M * part / parts, channels = p.M * (part + 1) / parts - first;
        bundles.push_back({i, first, channels, weights});
        weights += channels * sets[i].taps * p.C;
        most_rows = std::max(most_rows, channels * sets[i].phases);
      }
    }
  }

 private:
  // Until all phases of a set are known, PhaseRow::phases has preliminary indices: kGemmIndex times the index of the
  // GEMM, plus the index of the phase in this GEMM.
  static constexpr int64_t kGemmIndex = int64_t{1} << 32;

  void add_row(const ConvolutionProblem& p, PhaseSet& set, const AxisPhase& depth, const AxisPhase& height,
               const std::vector<AxisPhase>& columns) {
    PhaseRow row = {depth.remainder, height.remainder, {}};
    for (const AxisPhase& column : columns) {
      std::vector<int64_t> own, taps;
      for (size_t i = 0; i < depth.taps.size(); ++i) {
        for (size_t j = 0; j < height.taps.size(); ++j) {
          for (size_t k = 0; k < column.taps.size(); ++k) {
            own.push_back(distance_at({depth.distances[i], height.distances[j], column.distances[k]}));
            taps.push_back((depth.taps[i] * p.kernel[1] + height.taps[j]) * p.kernel[2] + column.taps[k]);
          }
        }
      }
      const auto same = std::find_if(set.gemms.begin(), set.gemms.end(),
                                     [&](const PhaseGemm& gemm) { return gemm.distances == own; });
      const auto index = same - set.gemms.begin();
      if (same == set.gemms.end()) set.gemms.push_back({std::move(own), {}});
      auto& phases = set.gemms[static_cast<size_t>(index)].taps;
      row.phases.push_back(index * kGemmIndex + static_cast<int64_t>(phases.size()));
      set.taps += static_cast<int64_t>(taps.size());
      phases.push_back(std::move(taps));
    }
    set.rows.push_back(std::move(row));
  }

  int64_t distance_at(const ConvolutionProblem::Axes& distance) {
    const auto [at, added] = distance_index_.emplace(distance, static_cast<int64_t>(distances.size()));
    if (added) distances.push_back(distance);
    return at->second;
  }

  static void number_phases(PhaseSet& set) {
    std::vector<int64_t> first;
    for (const PhaseGemm& gemm : set.gemms) {
      first.push_back(set.phases);
      set.phases += static_cast<int64_t>(gemm.taps.size());
    }
    for (PhaseRow& row : set.rows) {
      for (int64_t& phase : row.phases)
        phase = first[static_cast<size_t>(phase / kGemmIndex)] + phase % kGemmIndex;
    }
  }

  // Returns the number of channels for which a bundle has the lowest cost per channel. Partly filled blocks waste time,
  // and each bundle reads x again.
  static int64_t channels_of_bundle(const ConvolutionProblem& p, const PhaseSet& set) {
    int64_t best = 1;
    double lowest = 0;
    for (int64_t channels = 1; channels <= std::min<int64_t>(p.M, kMaxRows); ++channels) {
      if (channels > 1 && channels * set.phases > kMostBundleRows) break;
      int64_t cost = 0, most = 0;
      for (const PhaseGemm& gemm : set.gemms) {
        const auto taps = static_cast<int64_t>(gemm.distances.size());
        const int64_t rows = channels * static_cast<int64_t>(gemm.taps.size()), blocks = phase_blocks(rows);
        cost += (std::max(rows, blocks * kFullRows) + blocks) * taps;
        most = std::max(most, taps);
      }
      const double each = static_cast<double>(cost + 2 * most) / static_cast<double>(channels);
      if (channels == 1 || each < lowest) best = channels, lowest = each;
    }
    return best;
  }

  std::map<ConvolutionProblem::Axes, int64_t> distance_index_;  // index of each distance
};

// Returns the convolution that reads x for all phases: its window has a tap for each distance, the farthest one first.
inline ConvolutionProblem grid_of(const ConvolutionProblem& p) {
  ConvolutionProblem grid = p;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t first = p.pad[i] / p.stride[i], last = (p.pad[i] + p.out[i] - 1) / p.stride[i];
    const int64_t farthest = (p.kernel[i] - 1) * p.dilation[i] / p.stride[i];
    grid.out[i] = last - first + 1;
    grid.kernel[i] = farthest + 1;
    grid.pad[i] = farthest - first;
    grid.stride[i] = grid.dilation[i] = 1;
  }
  return grid;
}

// Whether the grid is x itself: the only distance is 0, and there is no padding.
inline bool is_grid_x(const ConvolutionProblem& grid) {
  bool same = true;
  for (size_t i = 0; i < 3; ++i) {
    same = same && grid.kernel[i] == 1 && grid.pad[i] == 0 && grid.out[i] == grid.in[i];
  }
  return same;
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
