// The key/value cache of GroupQueryAttention. fused_attention_* (operators/attention/attention) reads the cache.
//
// gqa_new_* writes the new tokens: it normalizes and rotates queries and keys. All work-items of a head compute the
// same sum of squares of the entire head. For one new token, a separate launch for these sums would take longer.
// gqa_past_* copies the past tokens from another buffer. gqa_window_* copies the tokens of a windowed cache. These two
// are memory-bound. In the *_together kernels, each work-item processes 16 bytes. gqa_int8_* and gqa_float8_* fill a
// quantized cache and dequantize it. All arithmetic is float32.
#include "blocks/gpu/quantized.h"
#include "blocks/gpu/rotary.h"
#include "operators/attention/group_query_attention/args.h"

namespace graphopt::hip {

// Returns the number of tokens in the cache of sequence b before the new ones.
DEVICE int begin_of(const int32_t* last_keys, uint32_t b, int S, int32_t first) {
  return first != 0 ? 0 : max_int(min_int(last_keys[b], 0x7ffffffe) + 1 - S, 0);
}

// Elements of a head, normalized if there is a weight.
template <class T, int kWidth>
struct GqaHead {
  const T *x, *weight;
  float factor = 1.0f;

  DEVICE GqaHead(const T* head, const T* weights, int H, float epsilon) : x(head), weight(weights) {
    if (weight == nullptr) return;
    float squares = 0.0f;
    for (int h = 0; h < H; h += kWidth) {
      const auto elements = to_floats(load_vec<kWidth>(x + h));
      UNROLL for (int w = 0; w < kWidth; ++w) squares =
          fused_multiply_add(elements.v[w], elements.v[w], squares);
    }
    factor = rsqrt_exact(squares / static_cast<float>(H) + epsilon);
  }

  DEVICE Vec<float, kWidth> at(uint32_t h) const {
    auto elements = to_floats(load_vec<kWidth>(x + h));
    if (weight == nullptr) return elements;
    const auto weights = to_floats(load_vec<kWidth>(weight + h));
    UNROLL for (int w = 0; w < kWidth; ++w) elements.v[w] *= factor * weights.v[w];
    return elements;
  }
};

template <class T, int kWidth>
DEVICE void gqa_new(const GqaNewArgs& args) {
  const T *q = args.q, *k = args.k, *v = args.v, *cos = args.cos, *sin = args.sin;
  const T *q_weight = args.q_weight, *k_weight = args.k_weight;
  const int32_t* last_keys = args.last_keys;
  const int64_t* ids = args.ids;
  T *queries = args.queries, *keys = args.keys, *values = args.values;
  const uint32_t i = work_item(kGqaThreads) * kWidth;
  if (i >= args.total) return;
  const uint32_t vector = divide(i, args.head), at = i - vector * args.head.d;
  const uint32_t line = divide(vector, args.heads), n = vector - line * args.heads.d;
  const uint32_t b = divide(line, args.tokens);
  const auto S = static_cast<int>(args.tokens.d), s = static_cast<int>(line - b * args.tokens.d);
  const int place = begin_of(last_keys, b, S, args.first) + s;

  const auto query_heads = static_cast<uint32_t>(args.query_heads),
             key_heads = static_cast<uint32_t>(args.key_heads);
  const bool is_query = n < query_heads, is_value = n >= query_heads + key_heads;
  const uint32_t of = is_query   ? n
                      : is_value ? n - query_heads - key_heads
                                 : n - query_heads;  // index among the heads of Q, K or V
  const GqaRows rows = is_query ? args.rows_of_q : is_value ? args.rows_of_v : args.rows_of_k;
  const T* x = (is_query   ? q
                : is_value ? v
                           : k) +
               static_cast<size_t>(line) * static_cast<size_t>(rows.row) + static_cast<size_t>(rows.offset) +
               of * args.head.d;
  T* y;
  if (is_query) {
    y = queries + (static_cast<size_t>(line) * query_heads + n) * args.head.d;
  } else {
    if (place >= args.length) return;
    const auto length = static_cast<size_t>(args.length);
    y = (is_value ? values : keys) +
        ((static_cast<size_t>(b) * key_heads + of) * length + static_cast<size_t>(place)) * args.head.d;
  }
  if (is_value) {
    store_vec(y + at, load_vec<kWidth>(x + at));
    return;
  }
  const GqaHead<T, kWidth> head(x, is_query ? q_weight : k_weight, static_cast<int>(args.head.d),
                                is_query ? args.q_epsilon : args.k_epsilon);
  const auto half = static_cast<uint32_t>(args.half);
  Vec<float, kWidth> out = head.at(at);
  if (cos != nullptr) {
    const int64_t position = ids != nullptr ? ids[line] : place;
    const size_t angle = static_cast<size_t>(position) * half;
    const bool beside = args.interleaved != 0;
    if (position < 0 || position >= args.positions) {
      out = {};
    } else if (at < 2 * half) {
      out = rotated(out, head.at(first_partner<kWidth>(at, half, beside)), at, half, beside,
                    load_angles<kWidth>(cos + angle, at, half, beside),
                    load_angles<kWidth>(sin + angle, at, half, beside));
    }
  }
  store_vec(y + at, from_floats<T>(out));
}

template <class T, int kWidth>
DEVICE void gqa_past(const GqaPastArgs& args) {
  const T* past = args.past;
  const int32_t* last_keys = args.last_keys;
  T* y = args.y;
  const uint32_t i = work_item(kGqaThreads) * kWidth;
  if (i >= args.total) return;
  const uint32_t vector = divide(i, args.head), at = i - vector * args.head.d;
  const uint32_t row = divide(vector, args.length);
  const auto token = static_cast<int>(vector - row * args.length.d);
  const int begin = begin_of(last_keys, divide(row, args.heads), args.S, args.first);
  if (token >= begin && token - begin < args.S) return;
  Vec<T, kWidth> x = {};
  if (token < begin && token < args.past_length) {
    const size_t line =
        static_cast<size_t>(row) * static_cast<size_t>(args.past_length) + static_cast<size_t>(token);
    x = load_vec<kWidth>(past + line * args.head.d + at);
  }
  store_vec(y + i, x);
}

// Returns the number of tokens in a windowed cache after `tokens` tokens of a sequence.
DEVICE int held_after(int tokens, const GqaWindowArgs& args) {
  const auto capacity = static_cast<int>(args.capacity.d);
  if (tokens <= capacity) return tokens;
  const auto beyond = static_cast<uint32_t>(tokens - capacity);
  return tokens - static_cast<int>(divide(beyond + args.step.d - 1, args.step) * args.step.d);
}

template <class T, int kWidth>
DEVICE void gqa_window(const GqaWindowArgs& args) {
  const T* x = args.x;
  const int32_t* last_keys = args.last_keys;
  T* y = args.y;
  int32_t* last_rows = args.last_rows;
  int64_t* ids = args.ids;
  const auto S = static_cast<int>(args.tokens.d);
  // The index of a new token, and of the work-item's first element of the cache.
  const uint32_t token = work_item(kGqaThreads), i = token * kWidth;
  const uint32_t sequence = divide(token, args.tokens);
  if (last_rows != nullptr && sequence < static_cast<uint32_t>(args.batch)) {
    const int begin = begin_of(last_keys, sequence, S, args.first);
    last_rows[sequence] = args.first != 0 ? last_keys[sequence] : held_after(begin, args) + S - 1;
    if (ids != nullptr) ids[token] = begin + static_cast<int>(token - sequence * args.tokens.d);
  }
  if (i >= args.total) return;
  const uint32_t vector = divide(i, args.head), at = i - vector * args.head.d;
  const uint32_t row = divide(vector, args.capacity), b = divide(row, args.heads);
  const auto place = static_cast<int>(vector - row * args.capacity.d);
  const int begin = held_after(begin_of(last_keys, b, S, args.first), args);
  int held = begin, from = 0;
  if (args.evicts != 0) {
    const int tokens = max_int(min_int(last_keys[b], 0x7ffffffe) + 1, 0);
    const int end = args.first != 0 ? min_int(tokens, S) : begin + S;
    held = min_int(held_after(tokens, args), end);
    from = end - held;
  }
  Vec<T, kWidth> elements = {};
  if (place < held) {
    const size_t line = static_cast<size_t>(row) * static_cast<size_t>(args.x_rows) +
                        static_cast<size_t>(from) + static_cast<size_t>(place);
    elements = load_vec<kWidth>(x + line * args.head.d + at);
  }
  const size_t line =
      static_cast<size_t>(row) * static_cast<size_t>(args.y_rows) + static_cast<size_t>(place);
  store_vec(y + line * args.head.d + at, elements);
}

template <class T, class Code>
DEVICE void gqa_quantized(const GqaQuantizedArgs& args) {
  const Code* past = args.past;
  const int32_t* last_keys = args.last_keys;
  const float* scales = args.scale;
  const T* x = args.x;
  Code* y = args.y;
  T* z = args.z;
  const uint32_t i = work_item(kGqaThreads);
  if (i >= args.total) return;
  const uint32_t vector = divide(i, args.head), at = i - vector * args.head.d;
  const uint32_t row = divide(vector, args.length), b = divide(row, args.heads);
  const auto token = static_cast<int>(vector - row * args.length.d);
  const int begin = begin_of(last_keys, b, args.S, args.first);
  const float scale = scales[args.channels != 0 ? (row - b * args.heads.d) * args.head.d + at : 0];
  Code code = {};
  if (token >= begin && token - begin < args.S) {
    code = Code::of(to_float(x[i]) / scale);
  } else if (token < begin && token < args.past_length) {
    const size_t line =
        static_cast<size_t>(row) * static_cast<size_t>(args.past_length) + static_cast<size_t>(token);
    code = past[line * args.head.d + at];
  }
  y[i] = code;
  z[i] = from_float<T>(to_float(code) * scale);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(gqa_new, (gqa_new<T, 1>), kGqaThreads, GqaNewArgs, q, k, v, cos, sin, last_keys, ids, q_weight,
              k_weight, queries, keys, values)
FLOAT_KERNELS(gqa_new_together, (gqa_new<T, Pack<T>::kSize>), kGqaThreads, GqaNewArgs, q, k, v, cos, sin,
              last_keys, ids, q_weight, k_weight, queries, keys, values)
FLOAT_KERNELS(gqa_past, (gqa_past<T, 1>), kGqaThreads, GqaPastArgs, past, last_keys, y)
FLOAT_KERNELS(gqa_past_together, (gqa_past<T, Pack<T>::kSize>), kGqaThreads, GqaPastArgs, past, last_keys, y)
FLOAT_KERNELS(gqa_window, (gqa_window<T, 1>), kGqaThreads, GqaWindowArgs, x, last_keys, y, last_rows, ids)
FLOAT_KERNELS(gqa_window_together, (gqa_window<T, Pack<T>::kSize>), kGqaThreads, GqaWindowArgs, x, last_keys,
              y, last_rows, ids)
FLOAT_KERNELS(gqa_int8, (gqa_quantized<T, Int8>), kGqaThreads, GqaQuantizedArgs, past, last_keys, scale, x, y,
              z)
FLOAT_KERNELS(gqa_float8, (gqa_quantized<T, Float8>), kGqaThreads, GqaQuantizedArgs, past, last_keys, scale,
              x, y, z)
