// FusedAttention[Bias][Mask][Causal][Gqa][Guard][Softcap]: O = softmax(scale Q K^T + ...) V.
#pragma once

#include <cstdint>
#include <limits>

namespace graphopt {

// Element strides of an operand seen as [B, H, rows, cols]; 0 on a broadcast dim.
struct Strides4 {
  int64_t b = 0, h = 0, row = 0, col = 0;
};

// Everything but the pointers. The Transpose perms and broadcasts of the node are already folded into
// strides: Q [B, H, S, D], K [B, Hkv, T, D], V [B, Hkv, T, Dv], bias and mask [B, H, S, T], O [B, H, S, Dv].
struct AttentionProblem {
  int64_t B = 0, H = 0, S = 0, T = 0, D = 0, Dv = 0;
  int64_t group = 1;  // H / Hkv: query head h reads key/value head h / group
  Strides4 q, k, v, o, bias, mask;
  bool has_bias = false;
  bool has_mask = false;  // bool tensor, true keeps
  bool causal = false;    // key j is seen by query i iff j <= i + T - S
  bool guard = false;     // NaN probabilities become 0
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  float mask_value = -std::numeric_limits<float>::infinity();
};

}  // namespace graphopt
