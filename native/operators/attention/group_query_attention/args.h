// Arguments of the gqa_* kernels.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kGqaThreads = 256;

// Layout of Q, K or V of the new tokens: element h of head n of token t of the batch is at offset + t row + n H + h.
struct GqaRows {
  int32_t row, offset;
};

// Writes the heads of new tokens, after normalization and rotation: queries to `queries` [B, S, N, H], keys and values
// to the cache [B, G, length, H]. Token s of sequence b has position `begin` + s, which is also its row in the cache.
// begin is 0 in the first call; otherwise it is last_keys[b] + 1 - S. With a weight, a head x is normalized to
// weight x / sqrt(mean(x^2) + epsilon) before the rotation.
struct GqaNewArgs : Arguments<12, 200> {
  In q, k, v;
  In cos, sin;                  // [positions, half]; null: no rotation
  In last_keys, ids;            // int32_t [B]; int64_t [B, S] of positions for the rotation, or null
  In q_weight, k_weight;        // [H]; null: no normalization
  Out queries, keys, values;    // queries: null if the launch has no query heads
  uint32_t total;               // elements of all heads
  Divisor head, heads, tokens;  // H; query_heads + 2 G; S
  GqaRows rows_of_q, rows_of_k, rows_of_v;
  int32_t query_heads, key_heads;  // N or 0; G
  int32_t length;
  int32_t half, positions;
  int32_t first;  // 1 in the first call
  int32_t interleaved;
  float q_epsilon, k_epsilon;
};

// Fills the cache Y [B, G, length, H] around the new tokens: past tokens before them, zeros after them.
struct GqaPastArgs : Arguments<3, 80> {
  In past;       // [B, G, past_length, H] or null
  In last_keys;  // int32_t [B]
  Out y;
  uint32_t total;
  Divisor head, length, heads;
  int32_t S, past_length;
  int32_t first;  // 1 in the first call
};

// Copies the tokens of a windowed cache (sliding_window_cache) to a buffer that has S more rows for the new tokens.
// With `evicts`, copies the last tokens of the buffer back to the cache. The cache has C rows for a window of W tokens.
// When it is full, it evicts the first C - W + 1 tokens at once.
struct GqaWindowArgs : Arguments<5, 128> {
  In x;                           // [B, G, x_rows, H]
  In last_keys;                   // int32_t [B]
  Out y;                          // [B, G, y_rows, H]
  Out last_rows;                  // int32_t [B], the last row of each sequence in the buffer; null if evicts
  Out ids;                        // int64_t [B, S], the positions of the new tokens; may be null
  uint32_t total;                 // elements of C rows of all heads
  Divisor head, capacity, heads;  // H, C, G
  Divisor tokens, step;           // S; C - W + 1
  int32_t batch;
  int32_t x_rows, y_rows;
  int32_t first;  // 1 in the first call
  int32_t evicts;
};

// Fills a cache Y [B, G, length, H] of codes (int8 or float8e4m3fn): past tokens, then the new tokens of X, then zeros.
// Dequantizes the cache to Z. y = saturate(round(x / scale)), z = y scale.
struct GqaQuantizedArgs : Arguments<6, 104> {
  In past;       // codes [B, G, past_length, H]; may be the memory of Y
  In last_keys;  // int32_t [B]
  In scale;      // float [1], or [G, H] if `channels`
  In x;          // [B, G, length, H] in the type of the queries; may be the memory of Z
  Out y, z;      // z: like x
  uint32_t total;
  Divisor head, length, heads;
  int32_t S, past_length;
  int32_t first;  // 1 in the first call
  int32_t channels;
};

}  // namespace graphopt::hip
