// FusedAttention for few query rows for each key/value head, as when a decoder adds one token:
// O = softmax(scale Q K^T) V without bias, mask, causality, window or softcap.
//
// Memory-bound: K and V are read once, 16 bytes per work-item, several keys at a time. A group of kLanes adjacent
// work-items loads one row of K; it processes every kGroups-th key with a separate online softmax (FewSoftmax). The
// results of the groups are merged within each wave, then between waves through LDS. Devices with direct copies from
// memory to LDS load the next kStages - 1 iterations into LDS while they compute the current one: registers for so many
// iterations would leave too few waves on a compute unit. The keys are split among work-groups, and
// fused_attention_combine_* merges the results. Launch: operators/attention/attention/plan.cpp.
#include "device/platform.h"
#include "operators/attention/attention/args.h"

namespace graphopt::hip {

// Keys that a group loads in one iteration; the loads do not depend on each other.
constexpr int kKeysAtOnce = kAttentionFewKeys;
// The CPU emulates this path only for tests.
constexpr bool kFewAhead = kCopiesToLds || (kOnCpu && kWave == 32);
constexpr int kStages = kCopiesToLds ? kAttentionFewStages : 2;

template <class T, int kHead>
struct FewRows {
  static constexpr int kSize = Pack<T>::kSize, kLanes = kHead / kSize;
  static constexpr int kGroups = kAttentionThreads / kLanes, kWaves = kAttentionThreads / kWave;
  static_assert(kLanes <= kWave, "a group is a part of a wave");
  struct Merge {
    float o[kWaves][kHead];
    float highest[kWaves][kAttentionFewRows], sum[kWaves][kAttentionFewRows];
  };
  union Lds {
    Merge merge;
    Bits128 ahead[kFewAhead ? kStages : 1][2 * kKeysAtOnce][kFewAhead ? kAttentionThreads : 1];
  };
  static_assert(!kCopiesToLds || sizeof(Lds) == kAttentionFewLds, "the plan requests as much");
};

// Loads K and V of one group, kKeysAtOnce keys in each iteration. `d` is the work-item's first element of a head.
template <class T, int kHead>
struct FewKeys {
  using Few = FewRows<T, kHead>;
  typename Few::Lds& lds;
  const T *k, *v;  // addresses of the next iteration to load
  ptrdiff_t k_step, v_step;
  bool in_k, in_v;
  int left;  // remaining keys, from the group's first key of the next iteration on
  int begun = 0, taken = 0;
  Bits128 staged[kFewAhead ? 1 : 2 * kKeysAtOnce];

  DEVICE FewKeys(typename Few::Lds& to, const AttentionLayout& layout, const T* keys, const T* values, int d,
                 int first, int count)
      : lds(to),
        k(keys + static_cast<int64_t>(first) * layout.k.row + d),
        v(values + static_cast<int64_t>(first) * layout.v.row + d),
        k_step(static_cast<ptrdiff_t>(Few::kGroups) * layout.k.row),
        v_step(static_cast<ptrdiff_t>(Few::kGroups) * layout.v.row),
        in_k(d < layout.sizes.D),
        in_v(d < layout.sizes.Dv),
        left(count) {
    if constexpr (kFewAhead) {
      UNROLL for (int i = 0; i < kStages - 1; ++i) begin();
    }
  }

  // Whether key u of an iteration exists; `from` keys remain at the start of the iteration.
  DEVICE static bool inside(int from, int u) { return u * Few::kGroups < from; }

  DEVICE void begin() {
    UNROLL for (int u = 0; u < kKeysAtOnce; ++u) {
      const bool is = inside(left, u);
      if constexpr (kFewAhead) {
        copy_to_lds(&lds.ahead[begun][u][thread_x()], k + u * k_step, is && in_k);
        copy_to_lds(&lds.ahead[begun][kKeysAtOnce + u][thread_x()], v + u * v_step, is && in_v);
      } else {
        Bits128 key = {}, value = {};
        if (is && in_k) key = *reinterpret_cast<const Bits128*>(k + u * k_step);
        if (is && in_v) value = *reinterpret_cast<const Bits128*>(v + u * v_step);
        staged[u] = key;
        staged[kKeysAtOnce + u] = value;
      }
    }
    k += kKeysAtOnce * k_step;
    v += kKeysAtOnce * v_step;
    left -= kKeysAtOnce * Few::kGroups;
    begun = begun + 1 == kStages ? 0 : begun + 1;
    if constexpr (kFewAhead) end_group_of_copies();
  }

  // Starts the loads of another iteration and returns the keys and values of the oldest one.
  DEVICE void take(Pack<T> (&keys)[kKeysAtOnce], Pack<T> (&values)[kKeysAtOnce]) {
    begin();
    if constexpr (kFewAhead) wait_for_copies_except<kStages - 1>();
    UNROLL for (int u = 0; u < kKeysAtOnce; ++u) {
      if constexpr (kFewAhead) {
        keys[u] = bit_cast<Pack<T>>(lds.ahead[taken][u][thread_x()]);
        values[u] = bit_cast<Pack<T>>(lds.ahead[taken][kKeysAtOnce + u][thread_x()]);
      } else {
        keys[u] = bit_cast<Pack<T>>(staged[u]);
        values[u] = bit_cast<Pack<T>>(staged[kKeysAtOnce + u]);
      }
    }
    taken = taken + 1 == kStages ? 0 : taken + 1;
  }
};

template <class T, int kHead>
struct FewSoftmax {
  static constexpr int kSize = Pack<T>::kSize;
  float q[kSize], o[kSize] = {}, highest = -infinity(), sum = 0;

  // `left`: remaining keys at the start of this iteration (FewKeys).
  DEVICE void add(const Pack<T> (&k)[kKeysAtOnce], const Pack<T> (&v)[kKeysAtOnce], int left,
                  float exponent) {
    float scores[kKeysAtOnce], most = highest;
    UNROLL for (int u = 0; u < kKeysAtOnce; ++u) {
      float s = 0;
      UNROLL for (int e = 0; e < kSize; ++e) s = fused_multiply_add(q[e], to_float(k[u].v[e]), s);
      UNROLL for (int mask = 1; mask < FewRows<T, kHead>::kLanes; mask *= 2) s += shuffle_xor(s, mask);
      scores[u] = FewKeys<T, kHead>::inside(left, u) ? s : -infinity();
      most = max_float(most, scores[u]);
    }
    // If all scores so far are -inf, subtract 0: -inf - -inf would be NaN although finite scores may follow.
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

  // Merges the results of the wave's groups.
  DEVICE void merge(float exponent) {
    UNROLL for (int mask = FewRows<T, kHead>::kLanes; mask < kWave; mask *= 2) {
      const float theirs = shuffle_xor(highest, mask), most = max_float(highest, theirs);
      const float shift = most == -infinity() ? 0.0f : most;
      const float mine = exp2_fast((highest - shift) * exponent),
                  other = exp2_fast((theirs - shift) * exponent);
      highest = most;
      sum = sum * mine + shuffle_xor(sum, mask) * other;
      UNROLL for (int e = 0; e < kSize; ++e) o[e] = o[e] * mine + shuffle_xor(o[e], mask) * other;
    }
  }
};

// The work of a work-group: all query rows of one batch element and one head of K and V, over a part of the keys.
struct FewPlace {
  const AttentionLayout& layout;
  uint32_t id, batch, head, first_head;  // first_head: first head of Q
  int rows, begin, end;

  DEVICE explicit FewPlace(const AttentionLayout& of)
      : layout(of), id(static_cast<uint32_t>(block_x())), rows(static_cast<int>(of.sizes.rows)) {
    const uint32_t all_heads = divide(id, layout.splits), split = id - all_heads * layout.splits.d;
    batch = divide(all_heads, layout.heads);
    head = all_heads - batch * layout.heads.d;
    first_head = head * divide(layout.sizes.rows, layout.queries);
    begin = static_cast<int>(split) * layout.sizes.split_keys;
    end = min_int(begin + layout.sizes.split_keys, layout.sizes.T);
  }

  // Offset of row r in Q or O.
  DEVICE int64_t row(int r, const AttentionStrides& strides) const {
    const uint32_t h = divide(static_cast<uint32_t>(r), layout.queries);
    const auto query = static_cast<int64_t>(static_cast<uint32_t>(r) - h * layout.queries.d);
    return batch * strides.b + (first_head + h) * strides.h + query * strides.row;
  }
};

// Adds up row r of the waves' results in LDS. Stores the sum to O, or as a partial result for
// fused_attention_combine_*.
template <class T, int kHead>
DEVICE void store_few(const AttentionArgs& args, const FewPlace& place,
                      const typename FewRows<T, kHead>::Merge& waves, int r, float highest) {
  const AttentionLayout& layout = args.layout;
  const float shift = highest == -infinity() ? 0.0f : highest;
  NO_UNROLL for (int column = thread_x(); column < layout.sizes.Dv; column += kAttentionThreads) {
    float sum = 0, value = 0;
    UNROLL for (int i = 0; i < FewRows<T, kHead>::kWaves; ++i) {
      sum += waves.sum[i][r] * exp2_fast((waves.highest[i][r] - shift) * layout.scores.exponent);
      value += waves.o[i][column];
    }
    if ((layout.scores.flags & kAttentionSplit) == 0) {
      T* o = args.o;
      o[place.row(r, layout.o) + int64_t{column} * layout.o.column] = from_float<T>(value / sum);
      continue;
    }
    const size_t at = static_cast<size_t>(place.id) * kAttentionFewRows + static_cast<size_t>(r);
    float *partial = args.partial, *statistics = args.statistics;
    partial[at * kHead + static_cast<size_t>(column)] = value;
    if (column == 0) {
      statistics[2 * at] = highest;
      statistics[2 * at + 1] = sum;
    }
  }
}

template <class T, int kHead>
DEVICE void attention_few(const AttentionArgs& args) {
  LARGE_SHARED(lds, typename FewRows<T, kHead>::Lds);
  using Few = FewRows<T, kHead>;
  constexpr int kSize = Few::kSize;
  const T *q = args.q, *k = args.k, *v = args.v;
  const AttentionLayout& layout = args.layout;
  const float exponent = layout.scores.exponent;
  const FewPlace place(layout);
  const int group = thread_x() / Few::kLanes, d = thread_x() % Few::kLanes * kSize;
  const int first = place.begin + group;
  FewKeys<T, kHead> ahead(lds, layout, k + place.batch * layout.k.b + place.head * layout.k.h,
                          v + place.batch * layout.v.b + place.head * layout.v.h, d, first,
                          place.end - first);

  FewSoftmax<T, kHead> softmax[kAttentionFewRows];
  UNROLL for (int r = 0; r < kAttentionFewRows; ++r) {
    const T* const row = q + place.row(r < place.rows ? r : 0, layout.q);
    UNROLL for (int e = 0; e < kSize; ++e) {
      softmax[r].q[e] = d + e < layout.sizes.D ? to_float(row[int64_t{d + e} * layout.q.column]) : 0.0f;
    }
  }

  // Every group has the same number of iterations, because the shuffles need all work-items of a wave.
  NO_UNROLL for (int turn = place.begin; turn < place.end; turn += Few::kGroups * kKeysAtOnce) {
    Pack<T> keys[kKeysAtOnce], values[kKeysAtOnce];
    ahead.take(keys, values);
    UNROLL for (int r = 0; r < kAttentionFewRows; ++r) {
      if (r < place.rows) softmax[r].add(keys, values, place.end - turn - group, exponent);
    }
  }
  // `lds.merge` overlaps the buffers of all copies, including those beyond the last iteration.
  if constexpr (kFewAhead) {
    wait_for_copies();
    barrier();
  }

  typename Few::Merge& waves = lds.merge;
  UNROLL for (int r = 0; r < kAttentionFewRows; ++r) {
    if (r >= place.rows) continue;
    softmax[r].merge(exponent);
    const bool first_group = lane_id() < Few::kLanes;
    if (lane_id() == 0) {
      waves.highest[wave_id()][r] = softmax[r].highest;
      waves.sum[wave_id()][r] = softmax[r].sum;
    }
    barrier();
    float highest = -infinity();
    UNROLL for (int i = 0; i < Few::kWaves; ++i) highest = max_float(highest, waves.highest[i][r]);
    const float shift = highest == -infinity() ? 0.0f : highest;
    const float factor = exp2_fast((softmax[r].highest - shift) * exponent);
    if (first_group) {
      UNROLL for (int e = 0; e < kSize; ++e) waves.o[wave_id()][d + e] = softmax[r].o[e] * factor;
    }
    barrier();
    store_few<T, kHead>(args, place, waves, r, highest);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(fused_attention_few_64, (attention_few<T, 64>), kAttentionThreads, AttentionArgs, q, k, v, bias,
              mask, o, partial, statistics, found)
FLOAT_KERNELS(fused_attention_few_128, (attention_few<T, 128>), kAttentionThreads, AttentionArgs, q, k, v,
              bias, mask, o, partial, statistics, found)
KERNEL_OF(fused_attention_few_256_f16, (attention_few<half_t, 256>), kAttentionThreads, AttentionArgs, q, k,
          v, bias, mask, o, partial, statistics, found)
