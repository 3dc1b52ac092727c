// The division of a convolution's tiles among threads, and their memory. cpu.cpp defines tiles, points, panels, v and
// o. For kernel files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/cache.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/winograd/gemm_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// The most bytes of v that all threads share: part of a last-level cache.
constexpr int64_t kSharedBytes = 8 << 20;
constexpr int64_t kStreamBytes = 2 << 20;  // from this size of y per thread on, stores bypass the caches
constexpr int64_t kFewestTiles = 4;        // fewest tiles of a piece: with fewer, reading weights dominates
constexpr int64_t kWeightsCost = 2;        // cost of reading a panel's weights; a tile costs 1
// Panels that a thread multiplies in one pass over v, if v is not in the second-level cache.
constexpr int64_t kPanelsTogether = 2;

// The division of the tiles among the threads.
template <class A>
struct WinogradSchedule {
  // The limit for the bytes of o of a thread: half of a second-level cache. The direct algorithm has only one point, so
  // its o can be limited to 32 KiB, which fit into a first-level cache.
  static int64_t o_limit() { return kPoints<A> == 1 ? 32 << 10 : second_level_cache() / 2; }

  Geometry g;
  int64_t workers, tiles, panels;
  bool stream;      // stores to y bypass the caches
  int64_t unit;     // pieces begin at multiples of this number of tiles: at cache lines of y if `stream`
  bool per_worker;  // each thread transforms the tiles that it multiplies; v fits in half an L2 cache
  int64_t blocks;  // blocks of tiles. Unless `per_worker`, the threads share the transformed tiles of a block
  int64_t pieces;  // pieces of a block, which has all tiles if `per_worker`
  int64_t group;   // panels that a thread multiplies at a time
  int64_t largest;  // tiles of the largest piece

  WinogradSchedule(const ConvolutionProblem& p, size_t element_size, size_t most_workers)
      : g(geometry<A>(p)),
        workers(static_cast<int64_t>(most_workers)),
        tiles(p.N * g.tiles_y * g.tiles_x),
        panels(ceil_div(round_up(p.M, L), kPanel * L)),
        stream(p.N * p.M * p.OH() * p.OW() * static_cast<int64_t>(element_size) >= kStreamBytes * workers),
        unit(stream ? std::max<int64_t>(kLineFloats / A::kTile, 1) : 1) {
    const int64_t v_bytes = v_floats(64) / 64 * static_cast<int64_t>(sizeof(float)) + 1;  // per tile
    const int64_t o_bytes = o_floats(64) / 64 * static_cast<int64_t>(sizeof(float));
    const int64_t local =
        std::min({second_level_cache() / 2 / v_bytes, o_limit() / o_bytes, ceil_div(tiles, workers)});
    per_worker = local >= 2 * kMaxRows;
    if (per_worker) {
      blocks = 1;
      pieces = ceil_div(tiles, local);
      group = 1;
      largest = std::min(tiles, ceil_div(tiles, pieces) + unit);
      return;
    }
    // Threads divide the output channels: weights are read once for many tiles.
    blocks = ceil_div(tiles, std::max<int64_t>(kSharedBytes / v_bytes, kMaxRows));
    const int64_t most_of_block = std::min(tiles, ceil_div(tiles, blocks) + unit);
    const int64_t fewest =
        ceil_div(most_of_block, std::max<int64_t>(o_limit() / kPanelsTogether / o_bytes, 1));
    const int64_t most = std::max(fewest, ceil_div(most_of_block, std::max(unit, kFewestTiles)));
    pieces = parts_of_least_cost(fewest, most, panels, workers, [&](int64_t n) {
      const int64_t count = ceil_div(most_of_block, n);
      return count + kWeightsCost * ceil_div(count, kMaxRows);
    });
    group = panels * pieces >= 4 * kPanelsTogether * workers ? kPanelsTogether : 1;
    largest = std::min(most_of_block, ceil_div(most_of_block, pieces) + unit);
  }

  // Returns the first tile of part i if n tiles are divided into `parts` parts.
  int64_t split(int64_t n, int64_t i, int64_t parts) const {
    return std::min(n, round_up(n * i / parts, unit));
  }
  int64_t v_floats(int64_t count) const { return kPoints<A> * v_stride(g, count); }
  // Returns the floats of o for one panel. The direct algorithm transposes L rows even if fewer remain.
  int64_t o_floats(int64_t count) const { return kPoints<A> * (count * kPanel + 1) * L + kPanel * L * L; }

  float* take_v(Workspace& workspace) const {
    return workspace.take<float>(v_floats(largest) * (per_worker ? workers : pieces));
  }
  // Returns the floats that multiply_half_transformed needs for each thread.
  static int64_t transformed_floats() {
    return kHalfTransformed<A> ? F4x4::kAlpha * point_stride(kRowChannels * kPanel * L) : 0;
  }
  float* take_transformed(Workspace& workspace) const {
    return workspace.take<float>(transformed_floats() * workers);
  }
  float* take_o(Workspace& workspace) const {
    return workspace.take<float>(o_floats(largest) * group * workers);
  }
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
