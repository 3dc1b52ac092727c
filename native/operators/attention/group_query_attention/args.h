// What gqa_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kGqaThreads = 256;
constexpr int kGqaMostHead = 256;  // numbers of a head

// Y [B, heads, length, H]: of sequence b the first `begin` tokens from past, then the S new ones, turned,
// then zeros. begin is 0 in the first call, where all S tokens are new, else lengths[b] + 1 - S. With a weight
// a new head x is weight x / sqrt(mean(x^2) + epsilon) before it is turned.
struct GqaHeadsArgs : Arguments<8, 144> {
  In x;     // new tokens: number h of head n of token s of b at b S row + s row + n H + h, from `offset` on
  In past;  // [B, heads, past_length, H], null where there is none; may be Y
  In cos, sin;      // [positions, half], null: nothing is turned
  In lengths, ids;  // int32_t [B]; int64_t [B, S], null: positions follow begin
  In weight;        // [H], null: nothing is normed
  Out y;
  uint32_t total;
  Divisor head, length, heads;
  int32_t S, row, offset;
  int32_t past_length, half, positions;
  int32_t first;  // it is the first call
  int32_t interleaved;
  int32_t new_only;  // Y has the new tokens alone, from 0 on
  float epsilon;
};

// Y [B, S, N, H] = softmax(scale Q K^T + ..) V; a work-group for each row.
struct GqaAttentionArgs : Arguments<7, 160> {
  In q;        // number h of head n of token s of b at b q_b + n q_n + s q_s + h
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
  int32_t window;        // keys that a query sees at most; 0: all
  int32_t flags;         // of GqaFlags
  float scale, softcap;  // softcap 0: none
  Divisor rows, heads;   // S, N
};

// kGqaEndsAtLastKey: a query in the padding has the window of its sequence's last token, as in ONNX Runtime's kernel
// without flash attention. Otherwise its window moves on and may hold no key.
enum GqaFlags : int32_t { kGqaFirst = 1, kGqaCausal = 2, kGqaSmooth = 4, kGqaEndsAtLastKey = 8 };

}  // namespace graphopt::hip
