// GroupQueryAttention on a GPU: a cache of keys and values, and attention over it.
#pragma once

#include "device/launch.h"

namespace graphopt::gpu {

struct GqaProblem {
  int64_t B = 1, S = 1, N = 1, G = 1, H = 1;  // batch, new tokens, query heads, key heads, size of a head
  int64_t length = 1;                         // tokens in the cache that is written
  int64_t past_length = 0;                    // tokens in the cache that is read
  bool first = true;                          // the cache is empty
  bool packed = false;                        // Q, K and V are one tensor
  bool causal = true, smooth = false, interleaved = false;
  int64_t half = 0, positions = 0;  // sizes of the cos and sin caches; 0: no rotary embedding
  bool has_ids = false;
  int64_t window = 0;
  float scale = 1, softcap = 0;
  bool norms = false;  // heads of queries and keys are normalized
  float q_epsilon = 0, k_epsilon = 0;
  bool has_sink = false;
  bool keeps_cache = true;                                // the cache is an output
  int64_t bias_batch = 0, bias_heads = 0, bias_keys = 0;  // 0: no bias
};

enum class GqaPart { kQuery, kKey, kValue };

// Writes new tokens in the layout of the cache, after the past tokens: inputs x, past, cos, sin, lengths, ids, weight;
// output y. For queries y has only the new tokens. Throws std::invalid_argument.
Plan gqa_heads_plan(const GqaProblem& p, GqaPart part, bool half);

// Inputs q, k, v, lengths, bias, sink; output y. q_in_heads: Q is [B, N, S, H], else in the layout of the node.
Plan gqa_attention_plan(const GqaProblem& p, bool q_in_heads, bool half);

}  // namespace graphopt::gpu
