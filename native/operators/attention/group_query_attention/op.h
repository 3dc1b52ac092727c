// GroupQueryAttention on a GPU: a cache of keys and values, and attention over it.
#pragma once

#include "device/launch.h"
#include "operators/attention/attention/op.h"

namespace graphopt::gpu {

struct GqaProblem {
  int64_t B = 1, S = 1, N = 1, G = 1, H = 1;  // batch, new tokens, query heads, key heads, size of a head
  int64_t length = 1;                         // rows of a head in the cache that is written
  int64_t past_length = 0;                    // rows of a head in the cache that is read
  // Rows of a windowed cache; 0: the cache holds all tokens. With a windowed cache, `length` is the size of a buffer
  // that holds the tokens of the cache and the new ones.
  int64_t capacity = 0;
  bool first = true;    // the cache is empty
  bool packed = false;  // Q, K and V are one tensor
  bool causal = true, smooth = false, interleaved = false;
  int64_t half = 0, positions = 0;  // sizes of the cos and sin caches; 0: no rotary embedding
  bool has_ids = false;
  int64_t window = 0;  // keys that a query sees up to its own; 0: all
  float scale = 1, softcap = 0;
  bool norms = false;  // heads of queries and keys are normalized
  float q_epsilon = 0, k_epsilon = 0;
  bool has_sink = false;
  bool keeps_cache = true;                                // the cache is an output
  int64_t bias_batch = 0, bias_heads = 0, bias_keys = 0;  // 0: no bias

  bool changes_queries() const { return half > 0 || norms; }
};

// Writes the new tokens: inputs query, key, value, cos, sin, last_keys, ids, and the weights of query and key; outputs
// queries [B, S, N, H] if p.changes_queries(), and the caches of keys and of values. `aligned`: all pointers are
// multiples of 16. All plans throw std::invalid_argument if a size is 2^31 or more.
Plan gqa_new_plan(const GqaProblem& p, bool half, bool aligned);

// Copies the past tokens to a cache in another buffer and sets the rows after the new tokens to zero: inputs past,
// last_keys; output the cache.
Plan gqa_past_plan(const GqaProblem& p, bool half, bool aligned);

// Copies the tokens of a windowed cache to the buffer; if `evicts`, copies the last tokens of the buffer to the cache.
// Inputs: the source, last_keys. Output 0: the destination. Without `evicts`, output 1 is the last row of each sequence
// in the buffer, int32 [B]. If also p.half > 0, output 2 has the positions of the new tokens, int64 [B, S].
Plan gqa_window_plan(const GqaProblem& p, bool half, bool aligned, bool evicts);

// Fills a cache of int8 or float8e4m3fn, and dequantizes it. Inputs: past, last_keys, scales [1] or, if `channels`,
// [G, H], and [B, G, length, H] with the new tokens. Outputs: the cache, and the dequantized cache, which may be the
// memory of input 3.
Plan gqa_quantized_plan(const GqaProblem& p, bool half, bool channels, bool is_float8);

// Returns the attention over the cache. Q is [B, S, N, H] if p.changes_queries(), else the query of the node.
AttentionProblem gqa_attention(const GqaProblem& p);

}  // namespace graphopt::gpu
