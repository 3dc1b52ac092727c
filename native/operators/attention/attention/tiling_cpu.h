// The division of attention into items, blocks of keys and tiles of rows, and their memory. For kernel files only (see
// cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/microkernels/tiles.h"
#include "cpu/microkernels/workspace.h"
#include "operators/attention/attention/multiply_cpu.h"
#include "operators/attention/attention/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

constexpr int64_t kTileRows = 48;     // a multiple of every rows_of() and of kWidth
constexpr int64_t kMaxTileRows = 96;  // also such a multiple; used if the scores fit in the first-level cache
constexpr int64_t kScoreFloats = 12 * 1024;  // the most scores in a tile of kMaxTileRows rows
constexpr int64_t kFewRows = 4;              // with at most this many rows, K and V are read in place
constexpr int64_t kLeastItemRows = 96;       // in an item of fewer rows, packing takes too much of the time
constexpr int64_t kItemFloats = 128 * 1024;  // the most elements of Q and O in an item
constexpr int64_t kBlockFloats = 64 * 1024;  // the most of K and V in a block: fits in the second-level cache
constexpr int64_t kBlockKeys = 512;          // the most keys of a block
constexpr int64_t kChunkKeys = 1024;         // the fewest keys of an item, if the keys are split
constexpr int64_t kEnoughItems = 16;         // with this many items, the keys are not split
constexpr int64_t kItemsPerWorker = 3;       // balances the load of the threads
constexpr int64_t kProductsPerWorker = 400'000;  // multiplications; with fewer, one worker less is faster

// The tiling of a problem. The rows of an item depend on the number of threads. This changes no result, because rows
// are independent. Blocks and chunks of keys determine the order of sums, and depend only on the problem.
struct AttentionTiling {
  int64_t workers;
  int64_t rows;        // rows per key/value head: group * S
  int64_t heads;       // key/value heads
  int64_t item_rows;   // rows of an item
  int64_t row_items;   // items along the rows
  int64_t block_keys;  // keys of a block
  int64_t chunk_keys;  // keys of an item
  int64_t chunks;      // items along the keys
  int64_t items;
  int64_t query_width;  // D, rounded up to entire vectors
  int64_t query_steps;  // steps of Q K^T along D
  int64_t value_width;  // Dv, rounded up to entire vectors
  int64_t score_stride;
  int64_t tile_rows;
  int64_t result_rows;  // rows of a PartialResult
  bool keys_in_place, values_in_place;
  bool uses_amx;
  bool scores_unchanged;  // the softmax reads Q K^T unchanged
  bool half_vector;       // the last panel of values is two and a half vectors
  bool one_block;         // one block has all keys: the result of a tile is final

  AttentionTiling(const AttentionProblem& p, int64_t most_workers, bool is_float) {
    rows = p.group * p.S;
    heads = p.H / p.group;
    query_width = round_up(p.D, kWidth);
    value_width = round_up(p.Dv, kWidth);
    uses_amx = p.bfloat16 && with_tiles();
    query_steps = p.bfloat16 ? tiled_steps(ceil_div(p.D, 2)) : p.D;
    const int64_t width = query_width + value_width;
    block_keys = std::clamp(kBlockFloats / width / kPanelFloats * kPanelFloats, kPanelFloats, kBlockKeys);
    if (p.T <= block_keys) block_keys = round_up(p.T, kWidth);
    score_stride = block_keys + kWidth;  // not a power of two: rows must not share cache sets
    tile_rows = kMaxTileRows * score_stride <= kScoreFloats ? kMaxTileRows : kTileRows;
    chunks = 1;
    if (p.B * heads * ceil_div(rows, kLeastItemRows) < kEnoughItems) {
      chunks = std::clamp<int64_t>(p.T / kChunkKeys, 1, kEnoughItems);
    }
    chunk_keys = round_up(ceil_div(p.T, chunks), block_keys);
    chunks = ceil_div(p.T, chunk_keys);
    workers = std::min(most_workers, 1 + p.B * p.H * p.S * p.T * (p.D + p.Dv) / kProductsPerWorker);
    const int64_t wanted = workers == 1 ? 1 : ceil_div(workers * kItemsPerWorker, p.B * heads * chunks);
    item_rows = std::max(std::min(kItemFloats / width, ceil_div(rows, wanted)), kLeastItemRows);
    item_rows = std::min(rows, round_up(ceil_div(rows, ceil_div(rows, item_rows)), tile_rows));
    row_items = ceil_div(rows, item_rows);
    items = p.B * heads * row_items * chunks;
    workers = std::min(workers, items);
    keys_in_place = rows <= kFewRows && (p.k.col == 1 || p.k.row == 1) && !p.bfloat16;
    const bool whole_values = p.v.col == 1 && p.Dv == value_width && !p.bfloat16;
    values_in_place = whole_values && (rows <= kFewRows || (is_float && p.v.row == p.Dv));
    scores_unchanged =
        !keys_in_place && !p.has_bias && !p.has_mask && !p.causal && !p.window && p.softcap == 0.0f;
    half_vector = kWidth == 16 && value_width % kPanelFloats == 48 && value_width - p.Dv >= kWidth / 2 &&
                  !values_in_place;
    one_block = p.T <= block_keys;
    result_rows = one_block ? tile_rows : round_up(item_rows, kWidth);
  }
};

// The result of an item: unnormalised output, highest scores, sums of probabilities, and the sum of 0 * V.
struct PartialResult {
  float *o, *highest, *sum, *zero_v;
};

struct AttentionScratch {
  float *q, *k, *v, *scores, *maxima, *factor, *block_zero_v;
  uint8_t* mask;
  PartialResult result;
};

inline PartialResult take_partial(const AttentionTiling& plan, Workspace& workspace) {
  PartialResult r;
  r.o = workspace.take<float>(plan.result_rows * plan.value_width);
  r.highest = workspace.take<float>(plan.result_rows);
  r.sum = workspace.take<float>(plan.result_rows);
  r.zero_v = workspace.take<float>(plan.value_width);
  return r;
}

inline AttentionScratch take_scratch(const AttentionTiling& plan, Workspace& workspace) {
  AttentionScratch s;
  s.q = workspace.take<float>(plan.tile_rows * plan.query_width);
  s.k = workspace.take<float>(plan.keys_in_place ? 0 : plan.block_keys * plan.query_steps);
  s.v = workspace.take<float>(plan.values_in_place ? 0 : plan.block_keys * plan.value_width);
  s.scores = workspace.take<float>(plan.tile_rows * plan.score_stride);
  s.maxima = workspace.take<float>(plan.scores_unchanged ? plan.tile_rows * kWidth : 0);
  s.factor = workspace.take<float>(plan.tile_rows);
  s.block_zero_v = workspace.take<float>(plan.value_width);
  s.mask = workspace.take<uint8_t>(plan.block_keys);
  s.result = take_partial(plan, workspace);
  return s;
}

// The memory of a call: the scratch of each worker, and the partial results if the keys are split.
struct AttentionMemory {
  char *scratch, *partials;
  size_t scratch_bytes, partial_bytes;
};

inline AttentionMemory take_memory(const AttentionTiling& plan, Workspace& workspace) {
  Workspace scratch(nullptr), partial(nullptr);
  take_scratch(plan, scratch);
  if (plan.chunks > 1) take_partial(plan, partial);
  AttentionMemory m;
  m.scratch_bytes = scratch.bytes();
  m.partial_bytes = partial.bytes();
  m.scratch = workspace.take<char>(plan.workers * static_cast<int64_t>(m.scratch_bytes));
  m.partials = workspace.take<char>(plan.items * static_cast<int64_t>(m.partial_bytes));
  return m;
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
