#include <algorithm>

#include "operators/attention/group_query_attention/args.h"
#include "operators/attention/group_query_attention/op.h"

namespace graphopt::gpu {
namespace {

// Returns the number of elements in 16 bytes.
int64_t pack_of(bool half) { return half ? 8 : 4; }

const char* kernel_of(const char* name, bool together, bool half) {
  return kernel_name({name, together ? "_together" : "", half ? "_f16" : "_f32"});
}

// Sets the sizes of a cache of `total` elements: the members that hip::GqaPastArgs and hip::GqaQuantizedArgs share.
template <class Args>
void set_cache_sizes(const GqaProblem& p, int64_t total, Args& args) {
  args.total = to_u31(total);
  args.head = make_divisor(p.H);
  args.length = make_divisor(p.length);
  args.heads = make_divisor(p.G);
  args.S = to_i31(p.S);
  args.past_length = to_i31(p.past_length);
  args.first = p.first;
}

}  // namespace

Plan gqa_new_plan(const GqaProblem& p, bool half, bool aligned) {
  const int64_t query_heads = p.changes_queries() ? p.N : 0, heads = query_heads + 2 * p.G;
  const int64_t total = p.B * p.S * heads * p.H;
  if (total == 0) return {};
  const bool rotates = p.half > 0;
  hip::GqaNewArgs args = {};
  args.q = input(0);
  args.k = input(p.packed ? 0 : 1);
  args.v = input(p.packed ? 0 : 2);
  args.cos = rotates ? input(3) : no_buffer();
  args.sin = rotates ? input(4) : no_buffer();
  args.last_keys = input(5);
  args.ids = rotates && p.has_ids ? input(6) : no_buffer();
  args.q_weight = p.norms ? input(7) : no_buffer();
  args.k_weight = p.norms ? input(8) : no_buffer();
  args.queries = query_heads > 0 ? output(0) : no_buffer();
  args.keys = output(1);
  args.values = output(2);
  args.total = to_u31(total);
  args.head = make_divisor(p.H);
  args.heads = make_divisor(heads);
  args.tokens = make_divisor(p.S);
  const int32_t all = to_i31((p.N + 2 * p.G) * p.H), of_queries = to_i31(p.N * p.H),
                of_keys = to_i31(p.G * p.H);
  args.rows_of_q = {p.packed ? all : of_queries, 0};
  args.rows_of_k = {p.packed ? all : of_keys, p.packed ? of_queries : 0};
  args.rows_of_v = {p.packed ? all : of_keys, p.packed ? of_queries + of_keys : 0};
  args.query_heads = to_i31(query_heads);
  args.key_heads = to_i31(p.G);
  args.length = to_i31(p.length);
  args.half = to_i31(p.half);
  args.positions = to_i31(p.positions);
  args.first = p.first;
  args.interleaved = p.interleaved;
  args.q_epsilon = p.q_epsilon;
  args.k_epsilon = p.k_epsilon;
  const int64_t pack = pack_of(half);
  const bool together = aligned && p.H % pack == 0 && (p.interleaved ? 2 * p.half : p.half) % pack == 0;
  return one_launch(kernel_of("gqa_new", together, half), together ? total / pack : total, hip::kGqaThreads,
                    args);
}

Plan gqa_past_plan(const GqaProblem& p, bool half, bool aligned) {
  const int64_t total = p.B * p.G * p.length * p.H;
  // If length is S, the new tokens of the first call fill the cache.
  if (total == 0 || (p.first && p.length == p.S)) return {};
  hip::GqaPastArgs args = {};
  args.past = p.past_length > 0 ? input(0) : no_buffer();
  args.last_keys = input(1);
  args.y = output(0);
  set_cache_sizes(p, total, args);
  const int64_t pack = pack_of(half);
  const bool together = aligned && p.H % pack == 0;
  return one_launch(kernel_of("gqa_past", together, half), together ? total / pack : total, hip::kGqaThreads,
                    args);
}

Plan gqa_window_plan(const GqaProblem& p, bool half, bool aligned, bool evicts) {
  const int64_t total = p.B * p.G * p.capacity * p.H;
  hip::GqaWindowArgs args = {};
  args.x = input(0);
  args.last_keys = input(1);
  args.y = output(0);
  args.last_rows = evicts ? no_buffer() : output(1);
  args.ids = evicts || p.half == 0 ? no_buffer() : output(2);
  args.total = to_u31(total);
  args.head = make_divisor(p.H);
  args.capacity = make_divisor(p.capacity);
  args.heads = make_divisor(p.G);
  args.tokens = make_divisor(p.S);
  args.step = make_divisor(p.capacity - p.window + 1);
  args.batch = to_i31(p.B);
  args.x_rows = to_i31(evicts ? p.length : p.capacity);
  args.y_rows = to_i31(evicts ? p.capacity : p.length);
  args.first = p.first;
  args.evicts = evicts;
  const int64_t pack = pack_of(half);
  const bool together = aligned && p.H % pack == 0;
  return one_launch(kernel_of("gqa_window", together, half),
                    std::max(together ? total / pack : total, evicts ? 0 : p.B * p.S), hip::kGqaThreads,
                    args);
}

Plan gqa_quantized_plan(const GqaProblem& p, bool half, bool channels, bool is_float8) {
  const int64_t total = p.B * p.G * p.length * p.H;
  if (total == 0) return {};
  hip::GqaQuantizedArgs args = {};
  args.past = input(0);
  args.last_keys = input(1);
  args.scale = input(2);
  args.x = input(3);
  args.y = output(0);
  args.z = output(1);
  set_cache_sizes(p, total, args);
  args.channels = channels;
  return one_launch(float_kernel(is_float8 ? "gqa_float8" : "gqa_int8", half), total, hip::kGqaThreads, args);
}

AttentionProblem gqa_attention(const GqaProblem& p) {
  AttentionProblem a;
  a.B = p.B;
  a.H = p.N;
  a.S = p.S;
  a.D = a.Dv = p.H;
  a.group = p.N / p.G;
  a.T = p.first ? std::min(p.S, p.length) : p.length;
  const int64_t row = (p.packed && !p.changes_queries() ? p.N + 2 * p.G : p.N) * p.H;
  a.q = {p.S * row, p.H, row, 1};
  a.k = a.v = {p.G * p.length * p.H, p.length * p.H, p.H, 1};
  a.o = {p.S * p.N * p.H, p.H, p.N * p.H, 1};
  if (p.bias_keys > 0) {
    a.has_bias = true;
    a.T = std::min(a.T, p.bias_keys);
    a.bias = {p.bias_batch > 1 ? p.bias_heads * p.S * p.bias_keys : 0,
              p.bias_heads > 1 ? p.S * p.bias_keys : 0, p.bias_keys, 1};
  }
  a.scale = p.scale;
  a.softcap = p.softcap;
  a.has_seqlens_k = true;
  a.begins_at_first_key = p.first;
  // Causality hides no key from a single query, which is the last token. With a window, a.right hides later keys.
  a.window = p.window > 0;
  a.causal = p.causal && !a.window && p.S > 1;
  if (a.window) {
    a.left = p.window - 1;
    a.right = p.causal ? 0 : p.S;
    // For a query in the padding after a sequence, ONNX Runtime's CPU kernels differ: its flash-attention kernel, which
    // runs in these cases, moves the window past the end of the sequence.
    const bool flash = p.softcap == 0.0f && !p.smooth && !p.has_sink && p.keeps_cache;
    a.ends_at_last_key = !flash;
  }
  a.sink = p.smooth || p.has_sink;
  a.has_sinks = p.has_sink;
  return a;
}

}  // namespace graphopt::gpu
