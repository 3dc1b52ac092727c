// What fused_attention_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

// Element strides of an operand seen as [B, H, rows, columns].
struct AttentionStrides {
  int64_t b, h;
  int32_t row, column;
};

struct AttentionSizes {
  uint32_t rows;  // query rows of one key/value head: those of all query heads that read it
  int32_t S, T, D, Dv;
  int32_t split_keys;   // keys of a work-group, a multiple of the block
  int32_t left, right;  // of a window: keys before and behind a query's own that it sees
};

enum AttentionFlags : int32_t {
  kAttentionCausal = 1,
  kAttentionGuard = 2,
  // Keys that causality or a window hides have probability 0 whatever the mask: they are not read.
  kAttentionSkips = 4,
  kAttentionVectorQ = 8,  // rows of Q are whole vectors; for K and V, a block also has 32-bit offsets
  kAttentionVectorK = 16,
  kAttentionVectorV = 32,
  kAttentionVectorO = 64,
  kAttentionKeyMajorK = 128,  // K is stored transposed: neighbouring keys are neighbours in memory
  kAttentionBias = 256,
  kAttentionMask = 512,
  kAttentionSoftcap = 1024,
  kAttentionSplit = 2048,  // the keys are split: results go to `partial` and `statistics`
  kAttentionFound = 4096,  // fused_attention_values_* has run
  kAttentionWindow = 8192,
};

struct AttentionScores {
  float scale, softcap, inverse_softcap, mask_value;
  float exponent;  // p = exp2(exponent (score - highest))
  int32_t flags;
};

struct AttentionLayout {
  AttentionStrides q, k, v, o, bias, mask;
  AttentionSizes sizes;
  Divisor queries;     // S: row of a key/value head -> head, query
  Divisor row_blocks;  // blocks of rows
  Divisor heads;       // key/value heads
  Divisor splits;
  Divisor dies;
  uint32_t groups_of_die;
  AttentionScores scores;
};

struct AttentionArgs : Arguments<9, 336> {
  Constant q, k, v, bias, mask;  // bias and mask may be null
  Out o;
  Out partial;     // unnormalised O of each split, null when there is one
  Out statistics;  // highest score and sum of each split
  Constant found;  // of fused_attention_values_*; null when not needed
  AttentionLayout layout;
};

constexpr int kAttentionThreads = 256;  // of fused_attention_few_*, _combine_* and _values_*
constexpr int kAttentionFewRows = 4;    // of fused_attention_few_*, at most
// Keys that a lane of fused_attention_few_* has in a turn, and, where memory reaches LDS without passing through
// registers, the turns that have a place there: 96 KiB, twice on a compute unit.
constexpr int kAttentionFewKeys = 4, kAttentionFewStages = 3;
constexpr int kAttentionFewLds = kAttentionFewStages * 2 * kAttentionFewKeys * kAttentionThreads * 16;

// Merges the splits. One work-item for each element of O, columns fastest; there are `total` of them.
struct AttentionCombineArgs : Arguments<4, 160> {
  In partial, statistics, found;
  Out o;
  AttentionStrides strides;  // of o
  AttentionSizes sizes;
  Divisor columns, rows, queries, heads;
  int32_t splits, block_rows, head_size;
  uint32_t total;
  float exponent;
  int32_t flags;
};

// Keys whose values one work-group of fused_attention_values_* looks at.
constexpr int kAttentionValueKeys = 512;

// Finds in each part of kAttentionValueKeys keys the last one whose value is not finite, or -1. A work-group has
// a part: `across` work-items, a power of two, take the packs of a row.
struct AttentionValuesArgs : Arguments<2, 80> {
  Constant v;
  Out found;  // [key/value heads][parts][Dv]
  AttentionStrides strides;
  int32_t keys, Dv, across;
  int32_t vectors;  // rows are whole vectors
  Divisor parts, heads;
};

}  // namespace graphopt::hip
