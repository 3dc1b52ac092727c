// Arguments of the fused_attention_* kernels.
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
  int32_t left, right;  // window: a query sees so many keys before and after its own position
};

enum AttentionFlags : int32_t {
  kAttentionCausal = 1,
  kAttentionGuard = 2,
  // Keys that causality or a window hides are not read: their probability is 0 for every mask.
  kAttentionSkips = 4,
  kAttentionVectorQ = 8,  // rows of Q are whole vectors; for K and V, a block also has 32-bit offsets
  kAttentionVectorK = 16,
  kAttentionVectorV = 32,
  kAttentionVectorO = 64,
  kAttentionKeyMajorK = 128,  // K is stored transposed: adjacent keys are adjacent in memory
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
  Divisor queries;     // S: splits a row of a key/value head into head and query
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
  Out partial;     // unnormalised O of each split; null without a split
  Out statistics;  // highest score and sum of each split
  Constant found;  // result of fused_attention_values_*; null if unused
  AttentionLayout layout;
};

constexpr int kAttentionThreads = 256;  // work-group size of fused_attention_few_*, _combine_* and _values_*
constexpr int kAttentionFewRows = 4;    // the most query rows that fused_attention_few_* accepts
// Keys that a work-item of fused_attention_few_* loads in an iteration, and the LDS buffers for such iterations on
// devices with direct copies from memory to LDS: 96 KiB, twice on a compute unit.
constexpr int kAttentionFewKeys = 4, kAttentionFewStages = 3;
constexpr int kAttentionFewLds = kAttentionFewStages * 2 * kAttentionFewKeys * kAttentionThreads * 16;

// Merges the splits. Each of `total` work-items computes one element of O, columns fastest.
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

// Number of keys for which one work-group of fused_attention_values_* checks the values.
constexpr int kAttentionValueKeys = 512;

// Finds the last key with a non-finite value in each part of kAttentionValueKeys keys, or -1. A work-group processes
// one part; `across` work-items, a power of two, read the packs of a row.
struct AttentionValuesArgs : Arguments<2, 80> {
  Constant v;
  Out found;  // [key/value heads][parts][Dv]
  AttentionStrides strides;
  int32_t keys, Dv, across;
  int32_t vectors;  // rows are whole vectors
  Divisor parts, heads;
};

}  // namespace graphopt::hip
