#include "operators/attention/group_query_attention/args.h"
#include "operators/attention/group_query_attention/op.h"

namespace graphopt::gpu {

Plan gqa_heads_plan(const GqaProblem& p, GqaPart part, bool half) {
  const bool is_query = part == GqaPart::kQuery, is_value = part == GqaPart::kValue;
  const bool rotates = p.half > 0 && !is_value, norms = p.norms && !is_value;
  const int64_t heads = is_query ? p.N : p.G, length = is_query ? p.S : p.length;
  const int64_t total = p.B * heads * length * p.H;
  if (total == 0) return {};
  const int64_t before = part == GqaPart::kQuery ? 0 : part == GqaPart::kKey ? p.N : p.N + p.G;
  hip::GqaHeadsArgs args = {};
  args.x = input(0);
  args.past = is_query || p.past_length == 0 ? no_buffer() : input(1);
  args.cos = rotates ? input(2) : no_buffer();
  args.sin = rotates ? input(3) : no_buffer();
  args.lengths = input(4);
  args.ids = rotates && p.has_ids ? input(5) : no_buffer();
  args.weight = norms ? input(6) : no_buffer();
  args.y = output(0);
  args.total = to_u31(total);
  args.head = make_divisor(p.H);
  args.length = make_divisor(length);
  args.heads = make_divisor(heads);
  args.S = to_i31(p.S);
  args.row = to_i31((p.packed ? p.N + 2 * p.G : heads) * p.H);
  args.offset = to_i31(p.packed ? before * p.H : 0);
  args.past_length = to_i31(p.past_length);
  args.half = to_i31(p.half);
  args.positions = to_i31(p.positions);
  args.first = p.first;
  args.interleaved = p.interleaved;
  args.new_only = is_query;
  args.epsilon = is_query ? p.q_epsilon : p.k_epsilon;
  return one_launch(float_kernel("gqa_heads", half), total, hip::kGqaThreads, args);
}

Plan gqa_attention_plan(const GqaProblem& p, bool q_in_heads, bool half) {
  const int64_t rows = p.B * p.N * p.S;
  if (rows * p.H == 0) return {};
  hip::GqaAttentionArgs args = {};
  args.q = input(0);
  args.k = input(1);
  args.v = input(2);
  args.lengths = input(3);
  args.bias = p.bias_keys > 0 ? input(4) : no_buffer();
  args.sink = p.has_sink ? input(5) : no_buffer();
  args.y = output(0);
  const int64_t row = (p.packed ? p.N + 2 * p.G : p.N) * p.H;
  args.q_b = q_in_heads ? p.N * p.S * p.H : p.S * row;
  args.q_n = q_in_heads ? p.S * p.H : p.H;
  args.q_s = q_in_heads ? p.H : row;
  args.bias_n = p.bias_heads > 1 ? p.S * p.bias_keys : 0;
  args.bias_b = p.bias_batch > 1 ? p.bias_heads * p.S * p.bias_keys : 0;
  args.bias_keys = to_i31(p.bias_keys);
  args.S = to_i31(p.S);
  args.N = to_i31(p.N);
  args.H = to_i31(p.H);
  args.length = to_i31(p.length);
  args.group = to_i31(p.N / p.G);
  args.window = to_i31(p.window);
  const bool flash = p.softcap == 0.0f && !p.smooth && !p.has_sink && p.keeps_cache;
  args.flags = (p.first ? hip::kGqaFirst : 0) | (p.causal ? hip::kGqaCausal : 0) |
               (p.smooth ? hip::kGqaSmooth : 0) | (flash ? 0 : hip::kGqaEndsAtLastKey);
  args.scale = p.scale;
  args.softcap = p.softcap;
  args.rows = make_divisor(p.S);
  args.heads = make_divisor(p.N);
  return one_launch(float_kernel("gqa_attention", half), Grid{to_u31(rows)}, hip::kGqaThreads, args);
}

}  // namespace graphopt::gpu
