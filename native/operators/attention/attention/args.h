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
  uint32_t rows;        // query rows of all query heads that share a key/value head
  int32_t S, T, D, Dv;  // number of queries and of keys; head size of Q and K, and of V
  // Keys of a work-group; a multiple of the block size except for fused_attention_few_*. With kAttentionSeqlensK,
  // split_keys is a power of two, and the keys of a work-group are a multiple of split_keys (KeyRange).
  int32_t split_keys;
  int32_t left, right;  // window: keys that a query sees before and after its position
};

enum AttentionFlags : int32_t {
  kAttentionCausal = 1,
  kAttentionGuard = 2,  // NaN probabilities become 0
  // Keys that causality or a window hides are not read: their probability is 0 for every mask.
  kAttentionSkips = 4,
  // The rows of Q, K, V or O consist of entire vectors. For K and V, offsets in a block also fit in 32 bits.
  kAttentionVectorQ = 8,
  kAttentionVectorK = 16,
  kAttentionVectorV = 32,
  kAttentionVectorO = 64,
  kAttentionKeyMajorK = 128,  // K is stored transposed: adjacent keys are adjacent in memory
  kAttentionBias = 256,
  kAttentionMask = 512,
  kAttentionSoftcap = 1024,
  kAttentionSplit = 2048,  // the keys are split: results go to `partial` and `statistics`
  // fused_attention_nonfinite_* has searched V for non-finite values. With kAttentionGuard and without this flag, a
  // work-group with a NaN softmax searches V itself.
  kAttentionNonfinite = 4096,
  kAttentionWindow = 8192,
  // The number of keys differs between batch elements. The last query has the position of the last key. A query that
  // sees no key gives zeros.
  kAttentionSeqlensK = 1 << 14,
  kAttentionBeginsAtFirstKey = 1 << 15,  // with kAttentionSeqlensK: query 0 has the position of key 0
  // With a window: a query after the last key has the position of the last key.
  kAttentionEndsAtLastKey = 1 << 16,
  kAttentionSink = 1 << 17,  // adds exp(sink of the head) to each sum of probabilities
  // In every row of the mask, each group of kAttentionKeysTogether adjacent keys is aligned to the size of the group.
  kAttentionVectorMask = 1 << 18,
  // AttentionRows::kPairs: the first half of the work-groups has the longest blocks, in descending order. The second
  // half has the other blocks, in ascending order. A compute unit then has a long block and a short one.
  kAttentionPairs = 1 << 19,
};

struct AttentionScores {
  float scale, softcap, inverse_softcap, mask_value;
  float exponent;  // p = exp2(exponent (score - highest))
  int32_t flags;
};

struct AttentionLayout {
  AttentionStrides q, k, v, o, bias, mask;
  AttentionSizes sizes;
  Divisor queries;           // S: splits the index of a row into query head and query
  Divisor row_blocks;        // blocks of rows of a key/value head
  Divisor heads;             // key/value heads
  Divisor splits;            // of the keys
  Divisor ranges;            // of the grid; consecutive work-groups are in different ranges (AttentionPlace)
  uint32_t groups_of_range;  // work-groups of a range
  AttentionScores scores;
};

// With kAttentionSeqlensK there is neither a mask nor a search for non-finite values. `mask` then points to last_keys,
// and `nonfinite` to the sinks. Two more pointers would take four scalar registers more than gfx90a has.
struct AttentionArgs : Arguments<9, 336> {
  Constant q, k, v, bias;  // bias may be null
  Constant mask;           // or last_keys: int32_t [B], the last key of each batch element. Null if unused
  Out o;
  Out partial;     // unnormalised O of each split; null without a split
  Out statistics;  // for each split and row: highest score, sum of probabilities
  // The result of fused_attention_nonfinite_*, or sinks [query heads]. Null if unused, or if all sinks are 0.
  Constant nonfinite;
  AttentionLayout layout;

  // Returns null if all batch elements have T keys.
  DEVICE const int32_t* last_keys() const {
    return (layout.scores.flags & kAttentionSeqlensK) != 0 ? static_cast<const int32_t*>(mask) : nullptr;
  }
};

// The probabilities of fused_attention_*_f16 are scaled by 2^kAttentionRaised (softmax.h).
constexpr float kAttentionRaised = 10.0f;
constexpr int kAttentionKeysTogether = 4;  // the most adjacent keys whose scores a work-item has

// Work-group size of fused_attention_few_*, _combine_* and _nonfinite_*.
constexpr int kAttentionThreads = 256;
constexpr int kAttentionFewRows = 4;  // the most query rows that fused_attention_few_* accepts
// kAttentionFewKeys: keys that a work-item of fused_attention_few_* loads in an iteration. kAttentionFewStages: LDS
// buffers on NVIDIA GPUs, which copy directly from memory to LDS: one for each iteration in flight. They take 96 KiB,
// so two work-groups fit on a compute unit.
constexpr int kAttentionFewKeys = 4, kAttentionFewStages = 3;
constexpr int kAttentionFewLds = kAttentionFewStages * 2 * kAttentionFewKeys * kAttentionThreads * 16;

// Merges the splits. Each row has a work-group.
struct AttentionCombineArgs : Arguments<6, 176> {
  In partial, statistics, nonfinite, last_keys, sinks;
  Out o;
  AttentionStrides strides;  // of o
  AttentionSizes sizes;
  Divisor rows, queries, heads, splits;
  int32_t block_rows, head_size;
  float exponent;
  float raised;  // all sums are scaled by 2^raised (softmax.h)
  int32_t flags;
};

// Keys whose values a work-group of fused_attention_nonfinite_* checks.
constexpr int kAttentionNonfiniteKeys = 512;

// The keys are divided into parts of kAttentionNonfiniteKeys keys. For each part and each column of V, finds the last
// key with a non-finite value, or -1. A work-group processes one part. `across` work-items, a power of two, read the
// packs of a row.
struct AttentionNonfiniteArgs : Arguments<2, 80> {
  Constant v;
  Out nonfinite;  // [key/value heads][parts][Dv]
  AttentionStrides strides;
  int32_t keys, Dv, across;
  int32_t vectors;  // rows are whole vectors
  Divisor parts, heads;
};

}  // namespace graphopt::hip
