// An implicit bfloat16 GEMM in AMX tiles (tiles_cpu.cpp). For kernel files only (see cpu/isa.h).
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/microkernels/tiles.h"
#include "cpu/parallel_for.h"
#include "operators/conv/fused_conv/finish.h"
#include "operators/conv/fused_conv/schedule.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Returns the order of steps in tiles, as indices into step_offsets. The pairs of channels of a tap are consecutive.
// Within a tap, the distance between the words of adjacent pairs is constant.
inline std::vector<int64_t> order_of_steps(const ConvolutionProblem& p) {
  const int64_t steps = steps_of<Bfloat16Pairs>(p), taps = pairs_columns<Bfloat16Pairs>(p) ? 1 : p.taps();
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(steps));
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t step = tap; step < steps; step += taps) order.push_back(step);
  }
  return order;
}

// Returns the words of a group's weights, in blocks of two tiles of channels: [block][16 steps][tile].
inline int64_t tiled_group_words(const ConvolutionProblem& p) {
  return round_up(p.M, kTileSide) * round_up(steps_of<Bfloat16Pairs>(p), kTileSide);
}
// Returns the offset of the words of a channel in tile k, which has 16 steps.
inline int64_t tiled_channel(const ConvolutionProblem& p, int64_t channel, int64_t k) {
  const int64_t first = channel / kBlockRows * kBlockRows,
                steps = round_up(steps_of<Bfloat16Pairs>(p), kTileSide);
  const int64_t tiles = std::min(kBlockTiles, ceil_div(p.M - first, kTileSide));
  return first * steps + (k * tiles * kTileSide + channel - first) * kTileSide;
}

// Returns the words of workspace for the gathered tiles of all threads.
int64_t conv_tiles_words(const ConvolutionProblem& p, int64_t workers);

std::vector<TileSource> tile_sources(const ConvolutionProblem& p, const std::vector<int64_t>& offsets,
                                     const std::vector<int64_t>& order, bool in_place);

// Returns the loop that multiplies a packed strip of an image. If x is read in place, s points into x, and nothing may
// be read beyond the last pair of channels of x. `gathered` has conv_tiles_words words. F is a Finish. p and the
// schedule must outlive the loop.
template <class F>
Loop multiply_in_tiles(const ConvolutionProblem& p, const StripSchedule& schedule, const Steps& steps,
                       const Word* s, const Word* w, const F& image, const Sharing& sharing, Word* gathered);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
