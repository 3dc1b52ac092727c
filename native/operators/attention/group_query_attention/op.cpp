// com.microsoft GroupQueryAttention.
#include "operators/attention/group_query_attention/op.h"

#include <algorithm>
#include <cmath>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

using gpu::GqaProblem;

enum : size_t {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kLastKeys,
  kTotal,
  kCos,
  kSin,
  kIds,
  kBias,
  kSink,
  kKeyScale,  // of a quantized cache
  kValueScale,
  kQueryNorm,
  kKeyNorm
};

// Returns the problem of a call. `p` has the values that the node's attributes determine. `rotates`: whether cos_cache
// and sin_cache rotate the heads. `is_windowed`: whether the cache only holds the last tokens (sliding_window_cache).
GqaProblem problem(const Call& call, GqaProblem p, bool rotates, bool is_windowed) {
  const Shape& q = call.input(kQuery).shape;
  throw_if(q.rank() != 3, "the query must have rank 3");
  p.packed = !call.has_input(kKey);
  p.B = q[0];
  p.S = q[1];
  const int64_t heads = p.packed ? p.N + 2 * p.G : p.N;
  throw_if(q[2] % heads != 0, "the query ", q, " does not divide into heads");
  p.H = q[2] / heads;
  throw_if(p.H > 256, "heads of ", p.H, " elements; at most 256 are supported");
  if (!p.packed) {
    const Shape wanted = {p.B, p.S, p.G * p.H};
    for (const size_t i : {size_t{kKey}, size_t{kValue}}) {
      throw_if(call.input(i).shape != wanted, "key and value must be ", wanted);
    }
  }
  if (call.has_input(kPastKey)) {
    const Shape& past = call.input(kPastKey).shape;
    throw_if(past.rank() != 4 || past[0] != p.B || past[1] != p.G || past[3] != p.H ||
                 call.input(kPastValue).shape != past,
             "the cache ", past, " must be [batch, kv_num_heads, tokens, head size]");
    p.past_length = past[2];
  }
  const std::vector<int64_t> total = call.integers(kTotal);
  throw_if(total.size() != 1 || total[0] < p.S,
           "total_sequence_length must be one integer, at least the number of new tokens");
  throw_if(call.input(kLastKeys).shape.elements() != p.B,
           "seqlens_k must have one element for each sequence");
  p.first = total[0] == p.S;
  p.length = std::max(total[0], p.past_length);
  if (is_windowed) {
    throw_if(p.past_length < p.window, "a cache of ", p.past_length, " tokens for a window of ", p.window);
    p.capacity = p.past_length;
    p.length = p.capacity + p.S;
  }
  if (rotates) {
    const Shape& cos = call.input(kCos).shape;
    throw_if(cos.rank() != 2 || call.input(kSin).shape != cos || 2 * cos[1] > p.H, "cos_cache and sin_cache ",
             cos, " must be equal matrices of at most half the head size");
    p.positions = cos[0];
    p.half = cos[1];
    p.has_ids = call.has_input(kIds);
    throw_if(p.has_ids && call.input(kIds).shape.elements() != p.B * p.S, "position_ids must be [B, S]");
    p.has_ids |= is_windowed;
  }
  if (call.has_input(kBias)) {
    const Shape& bias = call.input(kBias).shape;
    throw_if(bias.rank() != 4 || bias[2] != p.S || (bias[0] != 1 && bias[0] != p.B) ||
                 (bias[1] != 1 && bias[1] != p.N) || bias[3] < total[0],
             "attention_bias ", bias, " does not match the other inputs");
    p.bias_batch = bias[0];
    p.bias_heads = bias[1];
    p.bias_keys = bias[3];
  }
  p.norms = call.has_input(kQueryNorm);
  for (const size_t i : {size_t{kQueryNorm}, size_t{kKeyNorm}}) {
    throw_if(p.norms && call.input(i).shape != Shape{p.H},
             "normalization weights must have one element for each element of a head");
  }
  p.keeps_cache = call.outputs.size() > 2;
  p.has_sink = call.has_input(kSink);
  throw_if(p.has_sink && call.input(kSink).shape.elements() != p.N,
           "head_sink must have one element for each head");
  if (p.scale == 0.0f) p.scale = 1.0f / std::sqrt(static_cast<float>(p.H));
  return p;
}

// Input indices and output of the cache of keys, or of the cache of values.
struct Cache {
  size_t past, scale;
  Ref present;
};

// Reads the attributes that do not depend on a call.
GqaProblem problem_of(const Node& node) {
  GqaProblem p;
  p.N = node.get_int("num_heads");
  p.G = node.get_int("kv_num_heads");
  throw_if(p.N <= 0 || p.G <= 0 || p.N % p.G != 0, "num_heads must be a multiple of kv_num_heads");
  p.causal = node.get_bool("causal", true);
  p.smooth = node.get_int("smooth_softmax", -1) == 1;
  p.interleaved = node.get_bool("rotary_interleaved");
  const int64_t window = node.get_int("local_window_size", -1);
  p.window = window > INT32_MAX ? 0 : std::max<int64_t>(window, 0);  // such a window is larger than any cache
  p.scale = node.get_float("scale", 0.0f);
  p.softcap = node.get_float("softcap", 0.0f);
  const float epsilon = node.get_float("qk_norm_epsilon", 1e-6f);
  p.q_epsilon = node.get_float("q_norm_epsilon", epsilon);
  p.k_epsilon = node.get_float("k_norm_epsilon", epsilon);
  return p;
}

Planner plan_group_query_attention(const Node& node) {
  const bool rotates = node.get_bool("do_rotary"), is_windowed = node.get_bool("sliding_window_cache");
  const GqaProblem of_node = problem_of(node);
  return [=](Call& call, Program& program) {
    const Tensor& query = call.input(kQuery);
    const bool half = is_half(query);
    const GqaProblem p = problem(call, of_node, rotates, is_windowed);
    const Shape cache = {p.B, p.G, is_windowed ? p.capacity : p.length, p.H};
    const Ref y = set_output(call, 0, Shape{p.B, p.S, p.N * p.H});
    const auto given = [&](size_t i) { return input_or_none(call, i); };
    const bool quantized = call.has_input(kKeyScale);
    const ElementType type = quantized ? call.input(kPastKey).type : query.type;
    // The cache is written to its output, or to the workspace if that output is absent.
    const auto present = [&](size_t i) {
      if (i < call.outputs.size()) return set_output(call, i, cache, type);
      if (is_windowed) return Ref();
      return program.reserve(cache.elements() * bytes_of(type));
    };
    Ref last_keys = Ref::input(kLastKeys), ids = given(kIds);
    // New tokens are written to the cache, or to the workspace if the cache is quantized or windowed. The workspace
    // also receives the cached tokens of a windowed cache. A quantized cache is filled from the workspace and then
    // dequantized to the workspace: attention reads the new tokens with the same rounding as the past tokens.
    const Cache caches[] = {{kPastKey, kKeyScale, present(1)}, {kPastValue, kValueScale, present(2)}};
    Ref written[2];
    for (size_t i = 0; i < 2; ++i) {
      const Cache& to = caches[i];
      const bool in_workspace = quantized || is_windowed;
      written[i] =
          in_workspace ? program.reserve(p.B * p.G * p.length * p.H * bytes_of(query.type)) : to.present;
      if (in_workspace) continue;
      const gpu::Plan plan = gpu::gqa_past_plan(p, half, call.aligned());
      if (p.length == p.past_length) {
        program.launch_unless_in_place(plan, {given(to.past), last_keys}, {to.present});
      } else {
        program.launch(plan, {given(to.past), last_keys}, {to.present});
      }
    }
    if (is_windowed) {
      last_keys = program.reserve(p.B * bytes_of(ElementType::kInt32));
      const Ref positions = rotates ? program.reserve(p.B * p.S * bytes_of(ElementType::kInt64)) : Ref();
      if (!call.has_input(kIds)) ids = positions;
      for (size_t i = 0; i < 2; ++i) {
        program.launch(gpu::gqa_window_plan(p, half, call.aligned(), false),
                       {Ref::input(caches[i].past), Ref::input(kLastKeys)},
                       {written[i], last_keys, positions});
      }
    }
    const Ref keys = written[0], values = written[1];
    const Ref q = p.changes_queries() ? program.reserve(p.B * p.S * p.N * p.H * bytes_of(query.type)) : Ref();
    program.launch(gpu::gqa_new_plan(p, half, call.aligned()),
                   {Ref::input(kQuery), given(kKey), given(kValue), given(kCos), given(kSin), last_keys, ids,
                    given(kQueryNorm), given(kKeyNorm)},
                   {q, keys, values});
    for (size_t i = 0; i < 2 && quantized; ++i) {
      const Cache& to = caches[i];
      const int64_t scales = call.input(to.scale).shape.elements();
      throw_if(scales != 1 && scales != p.G * p.H, "the cache must have one scale, or one for each channel");
      program.launch(gpu::gqa_quantized_plan(p, half, scales != 1, type == ElementType::kFloat8E4M3Fn),
                     {Ref::input(to.past), last_keys, Ref::input(to.scale), written[i]},
                     {to.present, written[i]});
    }
    program.launch(
        gpu::fused_attention_plan(gpu::gqa_attention(p), half, call.aligned(), program.device().facts()),
        {p.changes_queries() ? q : Ref::input(kQuery), keys, values, given(kBias), Ref(), last_keys,
         given(kSink)},
        {y});
    for (size_t i = 0; i < 2 && is_windowed && p.keeps_cache; ++i) {
      program.launch(gpu::gqa_window_plan(p, half, call.aligned(), true), {written[i], Ref::input(kLastKeys)},
                     {caches[i].present});
    }
  };
}

// A plan depends on total_sequence_length only for the size of the cache, and to detect the first call. The kernels
// read seqlens_k.
bool keeps_gqa_plan(const Call& call, size_t i, const Tensor& value) {
  const Tensor& planned = call.input(i);
  if (value.type != ElementType::kInt32 || planned.type != value.type || value.shape.elements() != 1)
    return false;
  const int64_t S = call.input(kQuery).shape[1],
                past = call.has_input(kPastKey) ? call.input(kPastKey).shape[2] : 0;
  const int64_t before = *planned.as<int32_t>(), total = *value.as<int32_t>();
  const bool is_windowed = before > past && call.outputs.size() > 1 && call.outputs[1].shape[2] == past;
  return total >= S && (total == S) == (before == S) &&
         (is_windowed ? total > past : std::max(total, past) == std::max(before, past)) &&
         (!call.has_input(kBias) || total <= call.input(kBias).shape[3]);
}

std::string refuse_gqa(const Node& node) {
  const bool quantized = node.get_string("k_quant_type", "NONE") != "NONE";
  if (quantized != (node.get_string("v_quant_type", "NONE") != "NONE"))
    return "a cache with only keys or only values quantized";
  if (quantized) {
    const int64_t bits = node.get_int("kv_cache_bit_width", 8);
    if (bits != 8) return "a cache of " + std::to_string(bits) + " bits";
    for (const size_t i : {size_t{kPastKey}, size_t{kPastValue}}) {
      const ElementType type = node.has_input(i) ? node.inputs[i].type : ElementType::kUndefined;
      if (type != ElementType::kInt8 && type != ElementType::kFloat8E4M3Fn)
        return "a quantized cache that is neither int8 nor float8e4m3fn";
    }
    if (node.inputs[kPastKey].type != node.inputs[kPastValue].type)
      return "keys and values quantized to different types";
  }
  if (node.get_bool("sliding_window_cache")) {
    if (quantized) return "sliding_window_cache of a quantized cache";
    if (node.has_input(kBias)) return "sliding_window_cache with attention_bias";
    const int64_t window = node.get_int("local_window_size", -1);
    if (window <= 0 || window > INT32_MAX) return "sliding_window_cache without local_window_size";
    if (!node.has_input(kPastKey)) return "sliding_window_cache without past_key";
  }
  if (node.get_int("local_window_size", -1) == 0) return "local_window_size 0";
  for (const size_t i : {size_t{kKeyScale}, size_t{kValueScale}}) {
    if (node.has_input(i) != quantized)
      return "scales without a quantized cache, or a quantized cache without scales";
    if (quantized && node.inputs[i].type != ElementType::kFloat) return "the scales are not float";
  }
  if (node.has_input(kQueryNorm) != node.has_input(kKeyNorm))
    return "normalization of only queries or only keys";
  if (node.inputs.size() > kKeyNorm + 1 && node.has_input(kKeyNorm + 1))
    return "lengths of new tokens as an input";
  const auto has_output = [&](size_t i) { return node.outputs.size() > i && node.outputs[i].present; };
  if (has_output(3)) return "the output output_qk is not supported";
  if (has_output(1) != has_output(2)) return "only one of present_key and present_value";
  if (node.outputs.size() > 1 && !has_output(1)) return "present_key and present_value with empty names";
  if (!node.has_input(kLastKeys) || node.inputs[kLastKeys].type != ElementType::kInt32)
    return "seqlens_k is not int32";
  if (node.has_input(kIds) && node.inputs[kIds].type != ElementType::kInt64)
    return "position_ids is not int64";
  std::vector<size_t> others = {kLastKeys, kTotal, kIds};
  if (quantized) others.insert(others.end(), {kPastKey, kPastValue, kKeyScale, kValueScale});
  return refuse_mixed_floats(node, others);
}

}  // namespace

void add_group_query_attention(Kernels& kernels) {
  kernels.add_microsoft("GroupQueryAttention", plan_group_query_attention)
      .refused(refuse_gqa)
      .accepts_float8()
      .reads_on_host({kTotal})
      .reads_lengths({kLastKeys})
      .keeps_plans(keeps_gqa_plan)
      .works_in_place({{kPastKey, 1}, {kPastValue, 2}});
}

}  // namespace graphopt
