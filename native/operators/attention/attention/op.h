// FusedAttention[Bias][Mask][Causal][Gqa][Guard][Softcap]: O = softmax(scale Q K^T + ...) V.
// FusedAttention[BiasGuard][MaskGuard][Gqa][Softcap]Window: each query sees the keys near its position.
// FusedAttention[Bias][Mask][Causal][Guard]Bf16: the operands of both GEMMs are rounded to bfloat16.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "device/launch.h"
#include "operators/attention/attention/shape.h"
#include "operators/input_slice.h"
#include "operators/operator.h"

namespace graphopt {

// Element strides of an operand as [B, H, rows, cols]; 0 for a broadcast dim.
struct Strides4 {
  int64_t b = 0, h = 0, row = 0, col = 0;
  int64_t offset = 0;  // of the first element; not 0 only on a GPU, where Q, K and V can be slices
};

// The problem without pointers. The strides include the node's Transpose perms and broadcasts: Q [B, H, S, D], K [B,
// Hkv, T, D], V [B, Hkv, T, Dv], bias and mask [B, H, S, T], O [B, H, S, Dv].
struct AttentionProblem {
  int64_t B = 0, H = 0, S = 0, T = 0, D = 0, Dv = 0;
  int64_t group = 1;            // H / Hkv: query head h reads key/value head h / group
  int64_t left = 0, right = 0;  // size of the window, in keys (see `window`)
  Strides4 q, k, v, o, bias, mask;
  bool has_bias = false;
  bool has_mask = false;  // bool tensor: true keeps a score, false replaces it by mask_value
  bool causal = false;    // key j is seen by query i iff j <= i + T - S
  // Query i sees key j only if i + T - S - left <= j <= i + T - S + right. The mask also applies.
  bool window = false;
  bool guard = false;  // NaN probabilities become 0
  // Rounds the operands of both matrix multiplications (scale * Q, K, the exponentials, V) to bfloat16. CPU only.
  bool bfloat16 = false;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  float mask_value = -std::numeric_limits<float>::infinity();

  // The members below are for the GPU only.
  // The number of keys differs between batch elements: an input has the index of the last key of each (seqlens_k of
  // GroupQueryAttention). T is the largest number of keys. A query that sees no key gives zeros.
  bool has_seqlens_k = false;
  // With has_seqlens_k: query i has the position of key i; otherwise of key i + keys - S.
  bool begins_at_first_key = false;
  bool ends_at_last_key = false;  // with a window: a query after the last key has the position of that key
  bool sink = false;              // adds exp(sink of the head) to each sum of probabilities
  bool has_sinks = false;         // an input has the sinks [H], else they are 0
};

class FusedAttentionOp final : public Operator<AttentionProblem> {
 public:
  static std::vector<FusedAttentionOp> all();
  static std::vector<FusedAttentionOp> all_bfloat16();
  std::string name() const override;
  std::vector<Operand> inputs() const override;
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  struct Resolved;
  Resolved resolve(const Shapes& inputs) const;

  bool bias_ = false, mask_ = false, causal_ = false, gqa_ = false, guard_ = false, softcap_ = false;
  bool window_ = false, bfloat16_ = false;
  float scale_ = 1.0f, softcap_value_ = 0.0f, mask_value_ = 0.0f;
  int64_t left_ = 0, right_ = 0;
  std::vector<int64_t> q_perm_, k_perm_, v_perm_, o_perm_;
  std::optional<InputSlice> slices_[3];  // Q, K, V
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half; accumulation and softmax in float. bias and mask are null unless the problem
// has them.
GRAPHOPT_BFLOAT16_KERNEL(size_t, fused_attention_workspace, (const AttentionProblem& p, size_t workers),
                         (p, workers))
GRAPHOPT_BFLOAT16_KERNEL(void, fused_attention,
                         (const AttentionProblem& p, const T* q, const T* k, const T* v, const T* bias,
                          const bool* mask, T* o, Parallel& parallel, void* workspace),
                         (p, q, k, v, bias, mask, o, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs Q, K, V, then bias and mask if the problem has them; inputs 5 and 6 are last_keys and sinks; output O.
// `aligned`: all pointers are multiples of 16. `rows` overrides the planner's choice of kernel. Throws
// std::invalid_argument if a head has more than 256 elements. Throws it also if a dimension, the stride of a row or
// column, or the number of rows or work-groups is 2^31 or more.
Plan fused_attention_plan(const AttentionProblem& p, bool half, bool aligned, const DeviceFacts& device,
                          std::optional<hip::AttentionRows> rows = {});

}  // namespace graphopt::gpu
