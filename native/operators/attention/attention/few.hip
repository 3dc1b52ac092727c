// FusedAttention for at most kAttentionFewRows query rows for each key/value head, for example when a decoder adds one
// token: O = softmax(softcap(scale Q K^T)) V without bias, mask or causality. A window is supported for one query.
//
// Memory-bound: K and V are read once, 16 bytes per work-item, several keys at a time. A group of kLanes adjacent
// work-items loads one row of K; it processes every kGroups-th key with a separate online softmax (FewSoftmax). The
// results of the groups are merged within each wave, then between waves through LDS. On devices with direct copies from
// memory to LDS, the next kStages - 1 iterations are loaded into LDS during the current one. In registers they would
// take so much space that too few waves fit on a compute unit. The keys are split among work-groups, and
// fused_attention_combine_* merges the results. Launch: operators/attention/attention/plan.cpp.
#include "blocks/gpu/activation.h"
#include "operators/attention/attention/operands.h"

namespace graphopt::hip {

// Keys that a group loads in one iteration; the loads do not depend on each other.
constexpr int kKeysAtOnce = kAttentionFewKeys;
// Whether the next iterations are loaded into LDS in advance. Tests on the CPU use this path with waves of 32.
constexpr bool kFewAhead = kCopiesToLds || (kOnCpu && kWave == 32);
constexpr int kStages = kCopiesToLds ? kAttentionFewStages : 2;

template <class T, int kHead, int kRows>
struct FewRows {
  static constexpr int kSize = Pack<T>::kSize, kLanes = kHead / kSize;
  static constexpr int kGroups = kAttentionThreads / kLanes, kWaves = kAttentionThreads / kWave;
  static_assert(kLanes <= kWave, "a group is a part of a wave");
  struct Merge {
    float o[kWaves][kRows][kHead];
    float highest[kWaves][kRows], sum[kWaves][kRows];
  };
  union Lds {
    Merge merge;
    Bits128 ahead[kFewAhead ? kStages : 1][2 * kKeysAtOnce][kFewAhead ? kAttentionThreads : 1];
  };
  static_assert(!kCopiesToLds || sizeof(Lds) == kAttentionFewLds, "the plan requests as much");
};

// Loads K and V of one group, kKeysAtOnce keys in each iteration. d: the work-item's first element of a head.
template <class T, int kHead, int kRows>
struct FewKeys {
  using Few = FewRows<T, kHead, kRows>;
  typename Few::Lds& lds;
  const T *k, *v;  // addresses of the next iteration to load
  ptrdiff_t k_step, v_step;
  bool in_k, in_v;
  int remaining;             // keys, from the group's first key of the next iteration on
  int begun = 0, taken = 0;  // with kFewAhead: the LDS buffers to fill and to read next
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
        remaining(count) {
    if constexpr (kFewAhead) {
      UNROLL for (int i = 0; i < kStages - 1; ++i) begin();
    }
  }

  // Whether key u of an iteration exists; `from` keys remain at the start of the iteration.
  DEVICE static bool inside(int from, int u) { return u * Few::kGroups < from; }

  DEVICE void begin() {
    UNROLL for (int u = 0; u < kKeysAtOnce; ++u) {
      const bool is = inside(remaining, u);
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
    remaining -= kKeysAtOnce * Few::kGroups;
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

// Online softmax of kRows rows over the keys of a group. Each work-item of a group first has partial sums of the scores
// of all rows and keys. It then receives the total of kOwn scores of one row and computes their exponentials.
template <class T, int kHead, int kRows>
struct FewSoftmax {
  static constexpr int kSize = Pack<T>::kSize, kLanes = FewRows<T, kHead, kRows>::kLanes;
  static constexpr int kScores = kRows * kKeysAtOnce;  // row-major
  static constexpr int kOwn = kScores > kLanes ? kScores / kLanes : 1;
  // If a group has more work-items than kOwners, several work-items own the same scores.
  static constexpr int kOwners = kScores / kOwn;
  static_assert(kRows <= kLanes, "all own scores are in one row");

  float q[kRows][kSize], o[kRows][kSize] = {};
  float highest = -infinity();  // score of this work-item's row
  float sum = 0;                // over this work-item's scores

  // Returns the work-item of a group that owns a score. The bits of its index are the high bits of the score's index,
  // in reverse order.
  DEVICE static constexpr int owner(int score) {
    int lane = 0;
    for (int mask = 1, bit = kScores / 2; mask < kOwners; mask *= 2, bit /= 2)
      lane |= (score & bit) != 0 ? mask : 0;
    return lane;
  }

  DEVICE static int first_own() {
    int score = 0;
    UNROLL for (int mask = 1; mask < kOwners; mask *= 2) {
      score |= (lane_id() & mask) != 0 ? kScores / 2 / mask : 0;
    }
    return score;
  }

  // Adds up the partial sums of all scores of a group; scores[0] to scores[kOwn - 1] become the own scores. In each
  // step, a work-item sends half of its partial sums to its partner and receives the partner's sums for the other half.
  template <int kMask = 1>
  DEVICE static void add_parts(float (&scores)[kScores]) {
    if constexpr (kMask < kOwners) {
      constexpr int kHalf = kScores / 2 / kMask;
      const bool upper = (lane_id() & kMask) != 0;
      UNROLL for (int i = 0; i < kHalf; ++i) {
        const float low = scores[i], high = scores[i + kHalf];
        scores[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, kMask);
      }
      add_parts<2 * kMask>(scores);
    } else if constexpr (kMask < kLanes) {
      UNROLL for (int i = 0; i < kOwn; ++i) scores[i] += shuffle_xor(scores[i], kMask);
      add_parts<2 * kMask>(scores);
    }
  }

  // `remaining`: keys that remain at the start of this iteration (FewKeys).
  DEVICE void add(const Pack<T> (&k)[kKeysAtOnce], const Pack<T> (&v)[kKeysAtOnce], int remaining,
                  const AttentionScores& settings) {
    const float exponent = settings.exponent;
    float scores[kScores] = {};
    UNROLL for (int u = 0; u < kKeysAtOnce; ++u) {
      UNROLL for (int e = 0; e < kSize; ++e) {
        const float key = to_float(k[u].v[e]);
        UNROLL for (int r = 0; r < kRows; ++r) {
          float& score = scores[r * kKeysAtOnce + u];
          score = fused_multiply_add(q[r][e], key, score);
        }
      }
    }
    add_parts(scores);
    if ((settings.flags & kAttentionSoftcap) != 0) {
      UNROLL for (int i = 0; i < kOwn; ++i) {
        scores[i] = settings.softcap * tanh_fast(scores[i] * settings.scale * settings.inverse_softcap);
      }
    }
    float most = highest;
    UNROLL for (int i = 0; i < kOwn; ++i) {
      const bool is = FewKeys<T, kHead, kRows>::inside(remaining, (first_own() + i) % kKeysAtOnce);
      scores[i] = is ? scores[i] : -infinity();
      most = max_float(most, scores[i]);
    }
    UNROLL for (int mask = kRows; mask < kOwners; mask *= 2) most = max_float(most, shuffle_xor(most, mask));
    // If all scores so far are -inf, subtract 0: -inf - -inf would be NaN although finite scores may follow.
    const float shift = most == -infinity() ? 0.0f : most;
    if (any_in_wave(most > highest)) {
      const float factor = exp2_fast((highest - shift) * exponent);
      highest = most;
      sum *= factor;
      UNROLL for (int r = 0; r < kRows; ++r) {
        const float of_row = shuffle_in<kLanes>(factor, owner(r * kKeysAtOnce));
        UNROLL for (int e = 0; e < kSize; ++e) o[r][e] *= of_row;
      }
    }
    float p[kOwn];
    UNROLL for (int i = 0; i < kOwn; ++i) {
      p[i] = exp2_fast((scores[i] - shift) * exponent);
      sum += p[i];
    }
    UNROLL for (int u = 0; u < kKeysAtOnce; ++u) {
      float of_key[kRows];
      UNROLL for (int r = 0; r < kRows; ++r) {
        const int score = r * kKeysAtOnce + u;
        of_key[r] = shuffle_in<kLanes>(p[score % kOwn], owner(score));
      }
      UNROLL for (int e = 0; e < kSize; ++e) {
        const float value = to_float(v[u].v[e]);
        UNROLL for (int r = 0; r < kRows; ++r) o[r][e] = fused_multiply_add(of_key[r], value, o[r][e]);
      }
    }
  }

  // Merges row r of the wave's groups. Sets the highest score and the sum of the row.
  DEVICE void merge(int r, float exponent, float& highest_of_row, float& sum_of_row) {
    float all = sum;
    UNROLL for (int mask = kRows; mask < kOwners; mask *= 2) all += shuffle_xor(all, mask);
    float most_so_far = shuffle_in<kLanes>(highest, owner(r * kKeysAtOnce));
    all = shuffle_in<kLanes>(all, owner(r * kKeysAtOnce));
    UNROLL for (int mask = kLanes; mask < kWave; mask *= 2) {
      const float theirs = shuffle_xor(most_so_far, mask), most = max_float(most_so_far, theirs);
      const float shift = most == -infinity() ? 0.0f : most;
      const float mine = exp2_fast((most_so_far - shift) * exponent),
                  other = exp2_fast((theirs - shift) * exponent);
      most_so_far = most;
      all = all * mine + shuffle_xor(all, mask) * other;
      UNROLL for (int e = 0; e < kSize; ++e) o[r][e] = o[r][e] * mine + shuffle_xor(o[r][e], mask) * other;
    }
    highest_of_row = most_so_far;
    sum_of_row = all;
  }
};

// The work of a work-group: all query rows of one batch element and one key/value head, for one split of the keys.
struct FewPlace {
  const AttentionLayout& layout;
  uint32_t id, batch, head, first_head;  // first_head: first head of Q
  int rows, begin, end;                  // number of rows; keys [begin, end)
  bool is_used;                          // false: this split has no keys

  DEVICE FewPlace(const AttentionLayout& of, const int32_t* last_keys)
      : layout(of), id(static_cast<uint32_t>(block_x())), rows(static_cast<int>(of.sizes.rows)) {
    const uint32_t all_heads = divide(id, layout.splits), split = id - all_heads * layout.splits.d;
    batch = divide(all_heads, layout.heads);
    head = all_heads - batch * layout.heads.d;
    first_head = head * divide(layout.sizes.rows, layout.queries);
    const KeyRange range(layout.sizes, layout.scores.flags, layout.splits, last_keys,
                         static_cast<int>(batch));
    is_used = range.uses(static_cast<int>(split));
    begin = range.first + static_cast<int>(split) * range.of_split;
    end = min_int(begin + range.of_split, range.count);
  }

  // Offset of row r in Q or O.
  DEVICE int64_t row(int r, const AttentionStrides& strides) const {
    const uint32_t h = divide(static_cast<uint32_t>(r), layout.queries);
    const auto query = static_cast<int64_t>(static_cast<uint32_t>(r) - h * layout.queries.d);
    return batch * strides.b + (first_head + h) * strides.h + query * strides.row;
  }
};

// Merges the waves' results in LDS. Stores O, or partial results for fused_attention_combine_*.
template <class T, int kHead, int kRows>
DEVICE void store_few(const AttentionArgs& args, const FewPlace& place,
                      const typename FewRows<T, kHead, kRows>::Merge& waves) {
  constexpr int kWaves = FewRows<T, kHead, kRows>::kWaves;
  const AttentionLayout& layout = args.layout;
  const float exponent = layout.scores.exponent;
  NO_UNROLL for (int at = thread_x(); at < place.rows * kHead; at += kAttentionThreads) {
    const int r = at / kHead, column = at % kHead;
    if (column >= layout.sizes.Dv) continue;
    float highest = -infinity(), sum = 0, value = 0;
    UNROLL for (int i = 0; i < kWaves; ++i) highest = max_float(highest, waves.highest[i][r]);
    const float shift = highest == -infinity() ? 0.0f : highest;
    UNROLL for (int i = 0; i < kWaves; ++i) {
      const float factor = exp2_fast((waves.highest[i][r] - shift) * exponent);
      sum = fused_multiply_add(waves.sum[i][r], factor, sum);
      value = fused_multiply_add(waves.o[i][r][column], factor, value);
    }
    if ((layout.scores.flags & kAttentionSplit) == 0) {
      T* o = args.o;
      if ((layout.scores.flags & kAttentionSink) != 0) {
        const T* sinks = args.nonfinite;
        const uint32_t of = place.first_head + divide(static_cast<uint32_t>(r), layout.queries);
        sum += sink_term(sinks != nullptr ? to_float(sinks[of]) : 0.0f, highest, exponent, 0.0f);
      }
      const bool is_empty = (layout.scores.flags & kAttentionSeqlensK) != 0 && sum == 0.0f;
      o[place.row(r, layout.o) + int64_t{column} * layout.o.column] =
          from_float<T>(is_empty ? 0.0f : value / sum);
      continue;
    }
    const size_t row = static_cast<size_t>(place.id) * kAttentionFewRows + static_cast<size_t>(r);
    float *partial = args.partial, *statistics = args.statistics;
    partial[row * kHead + static_cast<size_t>(column)] = value;
    if (column == 0) {
      statistics[2 * row] = highest;
      statistics[2 * row + 1] = sum;
    }
  }
}

// kRows: 1 for one row, or kAttentionFewRows for up to this number of rows.
template <class T, int kHead, int kRows>
DEVICE void attention_few(const AttentionArgs& args) {
  using Few = FewRows<T, kHead, kRows>;
  LARGE_SHARED(lds, typename Few::Lds);
  constexpr int kSize = Few::kSize;
  const T *q = args.q, *k = args.k, *v = args.v;
  const AttentionLayout& layout = args.layout;
  const FewPlace place(layout, args.last_keys());
  if (!place.is_used) return;
  const int group = thread_x() / Few::kLanes, d = thread_x() % Few::kLanes * kSize;
  const int first = place.begin + group;
  FewKeys<T, kHead, kRows> ahead(lds, layout, k + place.batch * layout.k.b + place.head * layout.k.h,
                                 v + place.batch * layout.v.b + place.head * layout.v.h, d, first,
                                 place.end - first);

  FewSoftmax<T, kHead, kRows> softmax;
  UNROLL for (int r = 0; r < kRows; ++r) {
    const T* const row = q + place.row(r < place.rows ? r : 0, layout.q);
    UNROLL for (int e = 0; e < kSize; ++e) {
      softmax.q[r][e] = d + e < layout.sizes.D ? to_float(row[int64_t{d + e} * layout.q.column]) : 0.0f;
    }
  }

  // Every group has the same number of iterations, because the shuffles need all work-items of a wave.
  NO_UNROLL for (int first_key = place.begin; first_key < place.end;
                 first_key += Few::kGroups * kKeysAtOnce) {
    Pack<T> keys[kKeysAtOnce], values[kKeysAtOnce];
    ahead.take(keys, values);
    softmax.add(keys, values, place.end - first_key - group, layout.scores);
  }
  // Copies for iterations beyond the last one may still write to the buffers that `lds.merge` overlaps.
  if constexpr (kFewAhead) {
    wait_for_copies();
    barrier();
  }

  typename Few::Merge& waves = lds.merge;
  UNROLL for (int r = 0; r < kRows; ++r) {
    if (r >= place.rows) continue;
    float highest, sum;
    softmax.merge(r, layout.scores.exponent, highest, sum);
    if (lane_id() == 0) {
      waves.highest[wave_id()][r] = highest;
      waves.sum[wave_id()][r] = sum;
    }
    if (lane_id() < Few::kLanes) {
      UNROLL for (int e = 0; e < kSize; ++e) waves.o[wave_id()][r][d + e] = softmax.o[r][e];
    }
  }
  barrier();
  store_few<T, kHead, kRows>(args, place, waves);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

// The LDS buffers of two work-groups fit on a compute unit of an NVIDIA GPU.
FLOAT_KERNELS(fused_attention_few_64, (attention_few<T, 64, kAttentionFewRows>),
              LaunchBounds(kAttentionThreads, 2), AttentionArgs, q, k, v, bias, mask, o, partial, statistics,
              nonfinite)
FLOAT_KERNELS(fused_attention_few_128, (attention_few<T, 128, kAttentionFewRows>),
              LaunchBounds(kAttentionThreads, 2), AttentionArgs, q, k, v, bias, mask, o, partial, statistics,
              nonfinite)
KERNEL_OF(fused_attention_few_256_f16, (attention_few<half_t, 256, kAttentionFewRows>),
          LaunchBounds(kAttentionThreads, 2), AttentionArgs, q, k, v, bias, mask, o, partial, statistics,
          nonfinite)
FLOAT_KERNELS(fused_attention_few_one_64, (attention_few<T, 64, 1>), LaunchBounds(kAttentionThreads, 2),
              AttentionArgs, q, k, v, bias, mask, o, partial, statistics, nonfinite)
FLOAT_KERNELS(fused_attention_few_one_128, (attention_few<T, 128, 1>), LaunchBounds(kAttentionThreads, 2),
              AttentionArgs, q, k, v, bias, mask, o, partial, statistics, nonfinite)
KERNEL_OF(fused_attention_few_one_256_f16, (attention_few<half_t, 256, 1>),
          LaunchBounds(kAttentionThreads, 2), AttentionArgs, q, k, v, bias, mask, o, partial, statistics,
          nonfinite)
