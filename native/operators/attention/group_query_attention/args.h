// Arguments of the gqa_* kernels.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kGqaThreads = 256;
constexpr int kGqaMostHead = 256;  // the most elements of a head

// Y [B, heads, length, H] has for sequence b the first `begin` tokens of past, then the S new tokens after rotation,
// then zeros. begin is 0 in the first call, in which all tokens are new, else lengths[b] + 1 - S. With a weight, a new
// head x is normalized to weight x / sqrt(mean(x^2) + epsilon) before the rotation.
struct GqaHeadsArgs : Arguments<8, 144> {
  In x;         // new tokens: element h of head n of token s of b is at offset + b S row + s row + n H + h
  In past;      // [B, heads, past_length, H] or null; may be Y
  In cos, sin;  // [positions, half]; null: no rotation
  In lengths, ids;  // int32_t [B]; int64_t [B, S] or null: positions count from begin
  In weight;        // [H]; null: no normalization
  Out y;
  uint32_t total;
  Divisor head, length, heads;
  int32_t S, row, offset;
  int32_t past_length, half, positions;
  int32_t first;  // 1 in the first call
  int32_t interleaved;
  int32_t new_only;  // Y has only the new tokens, from 0 on
  float epsilon;
};

// Y [B, S, N, H] = softmax(scale Q K^T + ...) V; one work-group for each row.
struct GqaAttentionArgs : Arguments<7, 160> {
  In q;        // element h of head n of token s of b is at b q_b + n q_n + s q_s + h
  In k, v;     // [B, G, length, H]
  In lengths;  // int32_t [B]
  In bias;     // [1 or B, 1 or N, S, bias_keys] or null
  In sink;     // [N] or null
  Out y;
  int64_t q_b, q_n, q_s;
  int64_t bias_b, bias_n;
  int32_t bias_keys;
  int32_t S, N, H, length;
  int32_t group;         // query heads of a key head
  int32_t window;        // the most keys that a query sees; 0: all
  int32_t flags;         // GqaFlags
  float scale, softcap;  // softcap 0: none
  Divisor rows, heads;   // S, N
};

// kGqaEndsAtLastKey: a query in the padding has the window of its sequence's last token, as in ONNX Runtime's kernel
// without flash attention. Otherwise its window starts later and may contain no key.
enum GqaFlags : int32_t { kGqaFirst = 1, kGqaCausal = 2, kGqaSmooth = 4, kGqaEndsAtLastKey = 8 };

}  // namespace graphopt::hip
