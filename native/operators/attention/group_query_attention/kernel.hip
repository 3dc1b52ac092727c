// GroupQueryAttention: queries over a cache of keys and values.
//
// gqa_heads_* appends the new tokens of K and V to the cache, rotated by their positions. It is memory-bound: each
// element is read once and written once. With normalization, each work-item sums the squares of its entire head,
// although the work-items of a head compute the same sum: for one new token, a separate launch would take longer.
//
// gqa_attention_* has one work-group for each query. For each block of keys, a work-item computes the score of one key,
// then adds a part of the keys to one element of the output, with the online softmax of Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018. With one new token it reads the cache once for each query head. For long
// prompts FusedAttention's kernels are faster, because they share keys between queries. All arithmetic is float32.
#include "blocks/gpu/reduce.h"
#include "blocks/gpu/rotary.h"
#include "device/platform.h"
#include "operators/attention/group_query_attention/args.h"

namespace graphopt::hip {

// Returns the number of tokens in the cache of sequence b before the new ones.
DEVICE int begin_of(const int32_t* lengths, uint32_t b, int S, bool first) {
  return first ? 0 : max_int(lengths[b] + 1 - S, 0);
}

// Returns 1 / sqrt(mean of squares + epsilon) of a head, the factor of its normalization.
template <class T>
DEVICE float norm_of(const T* head, int H, float epsilon) {
  float squares = 0.0f;
  for (int h = 0; h < H; ++h) {
    const float x = to_float(head[h]);
    squares += x * x;
  }
  return rsqrt_exact(squares / static_cast<float>(H) + epsilon);
}

template <class T>
DEVICE void gqa_heads(const GqaHeadsArgs& args) {
  const T *x = args.x, *past = args.past, *cos = args.cos, *sin = args.sin, *weight = args.weight;
  const int32_t* lengths = args.lengths;
  const int64_t* ids = args.ids;
  T* y = args.y;
  const uint32_t i = work_item(kGqaThreads);
  if (i >= args.total) return;
  const uint32_t vector = divide(i, args.head), at = i - vector * args.head.d;
  const uint32_t row = divide(vector, args.length);
  const auto token = static_cast<int>(vector - row * args.length.d);
  const uint32_t b = divide(row, args.heads), n = row - b * args.heads.d;
  const int begin = begin_of(lengths, b, args.S, args.first != 0);
  const int since = args.new_only != 0 ? token : token - begin;
  float value = 0.0f;
  if (since < 0) {
    if (past != nullptr && token < args.past_length) {
      const size_t line =
          static_cast<size_t>(row) * static_cast<size_t>(args.past_length) + static_cast<size_t>(token);
      value = to_float(past[line * args.head.d + at]);
    }
  } else if (since < args.S) {
    const size_t line = static_cast<size_t>(b) * static_cast<size_t>(args.S) + static_cast<size_t>(since);
    const T* head =
        x + line * static_cast<size_t>(args.row) + static_cast<size_t>(args.offset) + n * args.head.d;
    const float norm = weight != nullptr ? norm_of(head, static_cast<int>(args.head.d), args.epsilon) : 1.0f;
    const auto normed = [&](int h) {
      return weight != nullptr ? to_float(head[h]) * norm * to_float(weight[h]) : to_float(head[h]);
    };
    const int64_t position = ids != nullptr ? ids[line] : begin + since;
    if (cos == nullptr) {
      value = normed(static_cast<int>(at));
    } else if (position >= 0 && position < args.positions) {
      const size_t angle = static_cast<size_t>(position) * static_cast<size_t>(args.half);
      value = rotate_element(normed, static_cast<int>(at), args.half, args.interleaved != 0, cos + angle,
                             sin + angle);
    }
  }
  y[i] = from_float<T>(value);
}

struct GqaLds {
  float query[kGqaMostHead];
  float p[kGqaThreads];
  float partial[kGqaThreads];
  WaveSums most, sum;
};

template <class T>
DEVICE void gqa_attention(const GqaAttentionArgs& args) {
  SHARED(lds, GqaLds);
  const T *q = args.q, *k = args.k, *v = args.v, *bias = args.bias, *sinks = args.sink;
  const int32_t* lengths = args.lengths;
  T* y = args.y;
  const int H = args.H, S = args.S, thread = thread_x();
  const auto row = static_cast<uint32_t>(block_x());
  const uint32_t head = divide(row, args.rows);
  const auto s = static_cast<int>(row - head * args.rows.d);
  const uint32_t b = divide(head, args.heads), n = head - b * args.heads.d;
  const bool first = (args.flags & kGqaFirst) != 0;
  const int end = min_int(lengths[b] + 1, args.length);
  int position = begin_of(lengths, b, S, first) + s;
  if ((args.flags & kGqaEndsAtLastKey) != 0) position = min_int(position, end - 1);
  const int last = (args.flags & kGqaCausal) != 0 ? min_int(position + 1, end) : end;
  const int from = args.window > 0 ? max_int(position - args.window + 1, 0) : 0;
  const size_t cache = (static_cast<size_t>(b) * static_cast<size_t>(args.N / args.group) +
                        n / static_cast<uint32_t>(args.group)) *
                       static_cast<size_t>(args.length) * static_cast<size_t>(H);
  const T* query = q + static_cast<int64_t>(b) * args.q_b + static_cast<int64_t>(n) * args.q_n + s * args.q_s;
  for (int h = thread; h < H; h += kGqaThreads) lds.query[h] = to_float(query[h]) * args.scale;
  barrier();
  // Each work-item sums one element of the output over every `parts`-th key.
  int across = 1;
  while (across < H) across *= 2;
  const int column = thread % across, part = thread / across, parts = kGqaThreads / across;
  float most = -infinity(), total = 0.0f, sum = 0.0f;
  if (sinks != nullptr || (args.flags & kGqaSmooth) != 0) {
    most = sinks != nullptr ? to_float(sinks[n]) : 0.0f;
    total = 1.0f;
  }
  NO_UNROLL for (int block = from; block < last; block += kGqaThreads) {
    const int key = block + thread;
    float score = -infinity();
    if (key < last) {
      const T* of_key = k + cache + static_cast<size_t>(key) * static_cast<size_t>(H);
      score = 0.0f;
      for (int h = 0; h < H; ++h) score += lds.query[h] * to_float(of_key[h]);
      if (args.softcap != 0.0f) {
        const float ratio = score / args.softcap, e = exp_fast(-2.0f * (ratio < 0 ? -ratio : ratio));
        const float tanh = (1.0f - e) / (1.0f + e);
        score = args.softcap * (ratio < 0 ? -tanh : tanh);
      }
      if (bias != nullptr && key < args.bias_keys) {
        score += to_float(bias[static_cast<int64_t>(b) * args.bias_b + static_cast<int64_t>(n) * args.bias_n +
                               static_cast<int64_t>(s) * args.bias_keys + key]);
      }
    }
    const float highest = max_float(most, group_max(score, lds.most, kGqaThreads));
    const float base = highest == -infinity() ? 0.0f : highest;
    const float p = key < last ? exp_fast(score - base) : 0.0f;
    lds.p[thread] = p;
    const float shrink = exp_fast(most - base);
    // The barrier of group_sum separates the writes of lds.p from the reads. The barrier of the next block's group_max
    // separates these reads from the next writes.
    total = total * shrink + group_sum(p, lds.sum, kGqaThreads);
    sum *= shrink;
    most = highest;
    const int count = min_int(last - block, kGqaThreads);
    if (column < H) {
      for (int j = part; j < count; j += parts) {
        sum += lds.p[j] * to_float(v[cache + static_cast<size_t>(block + j) * static_cast<size_t>(H) +
                                     static_cast<size_t>(column)]);
      }
    }
  }
  lds.partial[thread] = sum;
  barrier();
  if (thread >= H) return;
  float result = 0.0f;
  for (int j = 0; j < parts; ++j) result += lds.partial[j * across + thread];
  const size_t at = (static_cast<size_t>(b) * static_cast<size_t>(S) + static_cast<size_t>(s)) *
                        static_cast<size_t>(args.N) +
                    n;
  y[at * static_cast<size_t>(H) + static_cast<size_t>(thread)] =
      from_float<T>(from < last ? result / total : 0.0f);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(gqa_heads, gqa_heads<T>, kGqaThreads, GqaHeadsArgs, x, past, cos, sin, lengths, ids, weight, y)
FLOAT_KERNELS(gqa_attention, gqa_attention<T>, kGqaThreads, GqaAttentionArgs, q, k, v, lengths, bias, sink, y)
