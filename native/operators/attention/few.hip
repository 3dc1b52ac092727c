// FusedAttention where few rows share the keys, as when a decoder adds one token: O = softmax(scale Q K^T) V with
// nothing between the products.
//
// Bound by memory: K and V are read once, 16 bytes a lane, several keys at a time. A key is read by as many lanes
// as hold a head; each such group takes every kGroups-th key with its own online softmax (kernel.hip), and the
// groups merge through LDS at the end. The keys are split among work-groups, whose results
// fused_attention_combine_* merges. Launch: operators/attention/plan.cpp.
#include "device/platform.h"
#include "operators/attention/args.h"

namespace graphopt::hip {

template <class T, int kHead>
struct FewRows {
  static constexpr int kSize = Pack<T>::kSize, kLanes = kHead / kSize;
  static constexpr int kGroups = kAttentionThreads / kLanes;
  static_assert(kLanes <= kWave, "a group is a part of a wave");
  struct Lds {
    float o[kGroups][kHead];
    float highest[kGroups][kAttentionFewRows], sum[kGroups][kAttentionFewRows];
  };
};

// The keys that a group of lanes has at a time: independent loads.
constexpr int kKeysAtOnce = 4;

template <class T, int kHead>
struct FewSoftmax {
  static constexpr int kSize = Pack<T>::kSize;
  float q[kSize], o[kSize] = {}, highest = -infinity(), sum = 0;

  DEVICE void add(const Pack<T> (&k)[kKeysAtOnce], const Pack<T> (&v)[kKeysAtOnce], int keys,
                  float exponent) {
    float scores[kKeysAtOnce], most = highest;
    UNROLL for (int u = 0; u < kKeysAtOnce; ++u) {
      float s = 0;
      UNROLL for (int e = 0; e < kSize; ++e) s = fused_multiply_add(q[e], to_float(k[u].v[e]), s);
      UNROLL for (int mask = 1; mask < FewRows<T, kHead>::kLanes; mask *= 2) s += shuffle_xor(s, mask);
      scores[u] = u < keys ? s : -infinity();
      most = max_float(most, scores[u]);
    }
    // Nothing but -inf so far: subtract 0, since -inf - -inf would be NaN although finite scores may follow.
    const float shift = most == -infinity() ? 0.0f : most;
    const float factor = exp2_fast((highest - shift) * exponent);
    highest = most;
    sum *= factor;
    UNROLL for (int e = 0; e < kSize; ++e) o[e] *= factor;
    UNROLL for (int u = 0; u < kKeysAtOnce; ++u) {
      const float p = exp2_fast((scores[u] - shift) * exponent);
      sum += p;
      UNROLL for (int e = 0; e < kSize; ++e) o[e] = fused_multiply_add(p, to_float(v[u].v[e]), o[e]);
    }
  }
};

template <class T, int kHead>
DEVICE void attention_few(const AttentionArgs& args, typename FewRows<T, kHead>::Lds& lds) {
  using Few = FewRows<T, kHead>;
  constexpr int kSize = Few::kSize, kGroups = Few::kGroups;
  const T *q = args.q, *k = args.k, *v = args.v;
  const AttentionLayout& layout = args.layout;
  const AttentionSizes& sizes = layout.sizes;
  const float exponent = layout.scores.exponent;
  const auto id = static_cast<uint32_t>(block_x());
  const uint32_t all_heads = divide(id, layout.splits), split = id - all_heads * layout.splits.d;
  const uint32_t batch = divide(all_heads, layout.heads), head = all_heads - batch * layout.heads.d;
  const auto rows = static_cast<int>(sizes.rows);
  const uint32_t first_head = head * divide(sizes.rows, layout.queries);
  const int group = thread_x() / Few::kLanes, d = thread_x() % Few::kLanes * kSize;
  const int begin = static_cast<int>(split) * sizes.split_keys;
  const int end = min_int(begin + sizes.split_keys, sizes.T);
  k += batch * layout.k.b + head * layout.k.h + d;
  v += batch * layout.v.b + head * layout.v.h + d;

  // Of row r: the head and the query.
  const auto row_of = [&](int r, const AttentionStrides& strides) {
    const uint32_t h = divide(static_cast<uint32_t>(r), layout.queries);
    const auto query = static_cast<int64_t>(static_cast<uint32_t>(r) - h * layout.queries.d);
    return batch * strides.b + (first_head + h) * strides.h + query * strides.row;
  };
  FewSoftmax<T, kHead> softmax[kAttentionFewRows];
  UNROLL for (int r = 0; r < kAttentionFewRows; ++r) {
    const T* const row = q + row_of(r < rows ? r : 0, layout.q);
    UNROLL for (int e = 0; e < kSize; ++e) {
      softmax[r].q[e] = d + e < sizes.D ? to_float(row[int64_t{d + e} * layout.q.column]) : 0.0f;
    }
  }

  NO_UNROLL for (int first = begin; first < end; first += kGroups * kKeysAtOnce) {
    Pack<T> keys[kKeysAtOnce] = {}, values[kKeysAtOnce] = {};
    int count = 0;
    UNROLL for (int u = 0; u < kKeysAtOnce; ++u) {
      const int t = first + u * kGroups + group;
      if (t >= end) continue;
      ++count;
      if (d < sizes.D) keys[u] = load_pack(k + int64_t{t} * layout.k.row);
      if (d < sizes.Dv) values[u] = load_pack(v + int64_t{t} * layout.v.row);
    }
    UNROLL for (int r = 0; r < kAttentionFewRows; ++r) {
      if (r < rows) softmax[r].add(keys, values, count, exponent);
    }
  }

  UNROLL for (int r = 0; r < kAttentionFewRows; ++r) {
    if (d == 0) {
      lds.highest[group][r] = softmax[r].highest;
      lds.sum[group][r] = softmax[r].sum;
    }
  }
  UNROLL for (int r = 0; r < kAttentionFewRows; ++r) {
    if (r >= rows) continue;
    barrier();
    float highest = -infinity();
    NO_UNROLL for (int i = 0; i < kGroups; ++i) highest = max_float(highest, lds.highest[i][r]);
    const float shift = highest == -infinity() ? 0.0f : highest;
    const float factor = exp2_fast((softmax[r].highest - shift) * exponent);
    UNROLL for (int e = 0; e < kSize; ++e) lds.o[group][d + e] = softmax[r].o[e] * factor;
    barrier();
    const int column = thread_x();
    if (column >= sizes.Dv) continue;
    float sum = 0, value = 0;
    NO_UNROLL for (int i = 0; i < kGroups; ++i) {
      sum += lds.sum[i][r] * exp2_fast((lds.highest[i][r] - shift) * exponent);
      value += lds.o[i][column];
    }
    if ((layout.scores.flags & kAttentionSplit) != 0) {
      const size_t at = static_cast<size_t>(id) * kAttentionFewRows + static_cast<size_t>(r);
      float *partial = args.partial, *statistics = args.statistics;
      partial[at * kHead + static_cast<size_t>(column)] = value;
      if (column == 0) {
        statistics[2 * at] = highest;
        statistics[2 * at + 1] = sum;
      }
    } else {
      T* o = args.o;
      o[row_of(r, layout.o) + int64_t{column} * layout.o.column] = from_float<T>(value / sum);
    }
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define ATTENTION_FEW_KERNEL(T, kHead, suffix)                                                            \
  KERNEL(fused_attention_few_##suffix, kAttentionThreads, AttentionArgs, q, k, v, bias, mask, o, partial, \
         statistics, found) {                                                                             \
    using Lds = FewRows<T, kHead>::Lds;                                                                   \
    SHARED(Lds, lds);                                                                                     \
    attention_few<T, kHead>(args, lds);                                                                   \
  }

ATTENTION_FEW_KERNEL(float, 64, 64_f32)
ATTENTION_FEW_KERNEL(float, 128, 128_f32)
ATTENTION_FEW_KERNEL(half_t, 64, 64_f16)
ATTENTION_FEW_KERNEL(half_t, 128, 128_f16)
ATTENTION_FEW_KERNEL(half_t, 256, 256_f16)
