// FusedAttention[Bias][Mask][Causal][Gqa][Guard][Softcap]: O = softmax(scale Q K^T + ...) V in one kernel, with float32
// sums. docs/ops.md has the equations.
//
// FlashAttention's online softmax (T. Dao, "FlashAttention-2", 2023). A work-group processes a block of query rows of
// one key/value head. The rows are from all query heads that share this head. The work-group iterates over the keys in
// blocks:
//   scores = Q K^T -> bias, mask, ... -> p = exp(scores - highest so far)
//   -> O = O exp(old - new highest) + p V
// Each wave owns its rows, so only K and V pass through LDS between waves. On the matrix units p is kept in registers
// (gemm/pipelines/instruction.h); on the vector unit it passes through LDS of the wave. The next block of K or V is
// loaded into registers or (kCopiesToLds) LDS during the multiplication of the current one. On NVIDIA's matrix units,
// without bias, mask, window and softcap, K and V are double-buffered in LDS (kDoubleBuffered). Two groups of waves can
// then share the keys of the same rows (ping-pong scheduling): one group multiplies while the other computes
// exponentials.
//
// Files: loading.h assigns rows and keys to work-groups and loads Q, K and V into LDS. matrix_form.h and vector_form.h
// have the GEMMs for the matrix units and for the vector unit. Their classes have the same members; P is one of them.
// P::row and P::each map a work-item to its elements. softmax.h has the steps between the two GEMMs. This file has the
// loop over the keys, the output and the table of kernels.
//
// The kernel needs 4 S T D FLOPs per head (half for causal) for (2 S + 2 T) D elements, and is compute-bound beyond a
// few hundred keys. On an H200 (docs/measurements/gpu_attention_h200.md) float16 reaches 376 of the 725 TFLOP/s of a
// large GEMM, and float32 42 of 51. If there are fewer work-groups than the device needs, the keys are split among
// work-groups and fused_attention_combine_* merges their results.
//
// A key with probability 0 still adds 0 V to O, which is NaN if V is not finite. In two cases the kernel adds 0 V for
// keys that it has not read. First, causality or a window hides the keys. Second, the softmax of a row is NaN, and the
// guard replaces the row by 0 V. In the first case, and if the keys are split, fused_attention_nonfinite_* finds the
// non-finite values in advance. In the second case, a work-group with such a row searches V. Launch:
// operators/attention/attention/plan.cpp.
#include "device/platform.h"
#include "operators/attention/attention/args.h"
#include "operators/attention/attention/loading.h"
#include "operators/attention/attention/matrix_form.h"
#include "operators/attention/attention/shape.h"
#include "operators/attention/attention/softmax.h"
#include "operators/attention/attention/vector_form.h"

namespace graphopt::hip {

DEVICE float not_a_number() { return bit_cast<float>(uint32_t{0x7fc00000}); }

template <class T>
DEVICE bool is_finite(T x) {
  return to_float(x) * 0.0f == 0.0f;
}

// Returns the last key with a non-finite value in column d, or -1. Returns the largest int if one of the first `unread`
// parts, which no work-group reads, has such a key.
DEVICE int last_nonfinite(const int32_t* nonfinite, int parts, int Dv, int d, int unread) {
  int last = -1;
  for (int part = 0; part < parts; ++part) {
    const int at = nonfinite[static_cast<size_t>(part) * static_cast<size_t>(Dv) + static_cast<size_t>(d)];
    last = max_int(last, at >= 0 && part < unread ? 0x7fffffff : at);
  }
  return last;
}

// Returns the first of the keys that contribute 0 V to O without being read. If causality or a window hides the keys
// from `seen` on, this is `seen`, but at least 1. If all keys are read, it is `keys`. It is 0 if O is only 0 V: the
// guard replaces a NaN softmax (its sum is NaN or 0), or the query sees no key.
DEVICE int first_unread(float sum, int seen, int keys, int32_t flags) {
  if (keys == 0) return 0;
  if ((flags & kAttentionGuard) != 0 && !(sum > 0.0f)) return 0;
  if ((flags & kAttentionSeqlensK) != 0 && sum == 0.0f) return 0;
  return (flags & kAttentionSkips) == 0 ? keys : seen < 1 ? 1 : seen;
}

DEVICE int nonfinite_parts(int T) { return (T + kAttentionNonfiniteKeys - 1) / kAttentionNonfiniteKeys; }

// Stores the partial results that fused_attention_combine_* merges.
template <class T, class P>
DEVICE void store_split(const AttentionPlace<P>& place, const AttentionExtras<T>& extras, const P& gemms,
                        const AttentionSoftmax<P>& softmax) {
  float* partial = global(extras.partial) + place.id() * (P::kBlockRows * P::kHead);
  float* statistics = global(extras.statistics) + place.id() * (P::kBlockRows * 2);
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    const int r = P::row(slot);
    if (!P::keeps(slot) || place.first_row + r >= place.rows) continue;
    statistics[2 * r] = softmax.highest[slot];
    statistics[2 * r + 1] = softmax.sum[slot];
    gemms.each_output_of(slot, [&](int column, float o) { partial[r * P::kHead + column] = o; });
  }
}

// Returns whether a work-group searches V if the softmax of a row is NaN.
DEVICE bool searches_values(int32_t flags) {
  return (flags & (kAttentionGuard | kAttentionNonfinite | kAttentionSeqlensK)) == kAttentionGuard;
}

// Sets lds.last to 0 for the columns of V with non-finite values. Only rows with a NaN softmax read it.
template <class T, class P>
DEVICE void search_values(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& lds) {
  const AttentionSizes& sizes = place.layout.sizes;
  const AttentionStrides& strides = place.layout.v;
  const auto head = static_cast<int>(place.all_heads) - place.b * static_cast<int>(place.layout.heads.d);
  const T* const v = static_cast<const T*>(args.v) + place.b * strides.b + head * strides.h;
  const bool vectors = (place.layout.scores.flags & kAttentionVectorV) != 0;
  constexpr int kDown = P::kThreads / P::kAcross;
  const int d = thread_x() % P::kAcross * P::kSize;
  constexpr int kAtOnce = 8;
  NO_UNROLL for (int first = thread_x() / P::kAcross; first < sizes.T && d < sizes.Dv;
                 first += kAtOnce * kDown) {
    Pack<T> packs[kAtOnce] = {};
    UNROLL for (int i = 0; i < kAtOnce; ++i) {
      const int t = min_int(first + i * kDown, sizes.T - 1);
      const T* const from = v + int64_t{t} * strides.row + int64_t{d} * strides.column;
      if (vectors) {
        packs[i] = load_pack(from);
      } else {
        UNROLL for (int e = 0; e < P::kSize; ++e) {
          if (d + e < sizes.Dv) packs[i].v[e] = from[int64_t{e} * strides.column];
        }
      }
    }
    UNROLL for (int i = 0; i < kAtOnce; ++i) {
      UNROLL for (int e = 0; e < P::kSize; ++e) {
        if (!is_finite(packs[i].v[e])) lds.last[d + e] = 0;
      }
    }
  }
}

// Assembles the output of a part of the rows in LDS and stores it, in entire vectors if kAttentionVectorO is set.
template <class T, class P, bool kPlain>
DEVICE void store_output(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& lds,
                         const P& gemms, const AttentionSoftmax<P>& softmax, int part) {
  const AttentionSizes& sizes = place.layout.sizes;
  const int32_t flags = place.layout.scores.flags;
  if constexpr (P::kOutputOverlaps) barrier();
  T* const output = P::output_at(lds);
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    if (!P::keeps(slot) || !P::has_rows_in(part)) continue;
    const int r = P::row_in_part(slot);
    lds.sum[r] = softmax.sum[slot];
    const float inverse = 1.0f / softmax.sum[slot];
    gemms.each_few_of(slot, [&](int column, const auto& few) {
      constexpr int kCount = sizeof few.v / sizeof few.v[0];
      Few<T, kCount> to;
      UNROLL for (int e = 0; e < kCount; ++e) to.v[e] = from_float<T>(few.v[e] * inverse);
      *reinterpret_cast<Few<T, kCount>*>(output + r * P::kOutputStride + column) = to;
    });
  }
  if ((flags & kAttentionNonfinite) != 0 && part == 0) {
    const int parts = nonfinite_parts(sizes.T);
    const int32_t* nonfinite = global(static_cast<const int32_t*>(lds.extras.nonfinite)) +
                               static_cast<size_t>(place.all_heads) * static_cast<size_t>(parts * sizes.Dv);
    for (int d = thread_x(); d < sizes.Dv; d += P::kThreads) {
      lds.last[d] = last_nonfinite(nonfinite, parts, sizes.Dv, d, place.unread_parts());
    }
  }
  const bool searches = !kPlain && searches_values(flags);
  if (searches && part == 0) {
    for (int d = thread_x(); d < sizes.Dv; d += P::kThreads) lds.last[d] = -1;
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      if (P::keeps(slot) && !(softmax.sum[slot] > 0.0f)) lds.extras.is_nan = 1;
    }
  }
  barrier();
  if (searches && part == 0 && lds.extras.is_nan != 0) {
    search_values<T, P>(args, place, lds);
    barrier();
  }
  NO_UNROLL for (int at = thread_x(); at < P::kPartRows * P::kAcross; at += P::kThreads) {
    const int r = at / P::kAcross, d = at % P::kAcross * P::kSize;
    const int row_of_group = part * P::kPartRows + r;
    if (place.first_row + row_of_group >= place.rows || d >= sizes.Dv) continue;
    Pack<T> pack = load_pack(output + r * P::kOutputStride + d);
    const AttentionRow row = place.row_at(place.first_row + row_of_group);
    const int from = first_unread(lds.sum[r], row.query + place.ahead + 1, sizes.T, flags);
    if (from == 0) pack = {};
    if ((flags & kAttentionNonfinite) != 0 || searches) {
      UNROLL for (int e = 0; e < P::kSize; ++e) {
        if (d + e < sizes.Dv && lds.last[d + e] >= from) {
          pack.v[e] = from_float<T>(not_a_number());
        }
      }
    }
    const AttentionStrides& to = lds.extras.strides;
    T* o = global(lds.extras.o) + place.b * to.b + (place.first_head + row.head) * to.h +
           int64_t{row.query} * to.row + int64_t{d} * to.column;
    if ((flags & kAttentionVectorO) != 0) {
      store_pack(o, pack);
    } else {
      UNROLL for (int e = 0; e < P::kSize; ++e) {
        if (d + e < sizes.Dv) o[int64_t{e} * to.column] = pack.v[e];
      }
    }
  }
}

// Processes the keys of a work-group; each block of K and V has one buffer in LDS. kPlain: scores are scale Q K^T with
// scale > 0, with or without causality.
template <class T, class P, bool kPlain>
DEVICE void multiply_single_buffered(const AttentionArgs& args, const AttentionPlace<P>& place,
                                     typename P::Lds& lds, P& gemms, AttentionSoftmax<P>& softmax) {
  const AttentionLayout& layout = args.layout;
  const AttentionKeys<T, P> keys(args, place, lds);
  typename P::Staged first_keys;

  // The loads of the first block of K start before the loads of Q. Direct copies of K start later if Q is loaded
  // through registers: K may share the buffer of Q.
  if (place.begin < place.end && (!P::kDirectKeys || P::kDirectQueries)) {
    keys.begin_keys(first_keys, place.begin, thread_x());
  }
  load_queries<T, P>(args.q, place, lds, 0);
  store_extras<T, P>(args, place, lds);
  NO_UNROLL for (int part = 0;;) {
    if constexpr (P::kDirectQueries) wait_for_copies();
    lds_barrier();
    if constexpr (P::kTakesQueries) {
      gemms.take_queries(lds, part);
      lds_barrier();
    }
    if (++part == P::kRowParts) break;
    load_queries<T, P>(args.q, place, lds, part);
  }
  if (place.begin < place.end) {
    if constexpr (P::kDirectKeys && !P::kDirectQueries) keys.begin_keys(first_keys, place.begin, thread_x());
    keys.finish_keys(first_keys, place.begin, thread_x());
  }

  for (int t = place.begin; t < place.end; t += P::kKeys) {
    const int thread = kWave == 64 ? thread_x() : opaque(thread_x());
    const int next = t + P::kKeys;
    lds_barrier();
    typename P::Staged staged;  // declared outside of the loop, it would be copied in each iteration
    keys.begin_values(staged, t, thread);
    StagedMask<P> mask;
    if constexpr (!kPlain) mask.load(place, lds.extras.mask, t);
    typename P::Scores scores;
    gemms.multiply_keys(lds, scores, layout.sizes.D);
    if constexpr (kPlain) {
      finish_plain_scores<P>(scores, place, t);
    } else {
      finish_scores<T, P>(scores, place, lds.extras, mask, t);
    }
    if constexpr (P::kLazily) {
      softmax.template add_lazily<T>(scores, gemms, layout.scores.exponent);
    } else {
      softmax.template add<T>(scores, gemms, layout.scores.exponent);
    }
    keys.finish_values(staged, t, thread);
    lds_barrier();
    if (next < place.end) keys.begin_keys(staged, next, thread);
    gemms.multiply_values(lds, scores);
    if (next < place.end) keys.finish_keys(staged, next, thread);
  }
}

// A barrier of the work-items that share blocks of keys: a wave group, or the work-group.
template <class P>
DEVICE void wave_group_barrier() {
  if constexpr (P::kWaveGroups > 1) {
    named_barrier(P::wave_group(), P::kGroupThreads);
  } else {
    barrier();
  }
}

// The same with double-buffered K and V. Requires direct copies from memory to LDS, and rows of K and V that are entire
// vectors. Each block needs one barrier.
template <class T, class P>
DEVICE void multiply_double_buffered(const AttentionArgs& args, const AttentionPlace<P>& place,
                                     typename P::Lds& lds, P& gemms, AttentionSoftmax<P>& softmax) {
  AttentionBlocks<T, P> blocks(args, place, lds);
  load_queries<T, P>(args.q, place, lds, 0);
  blocks.begin(2 * P::wave_group(), 0, 1);
  store_extras<T, P>(args, place, lds);
  wait_for_copies();
  barrier();
  gemms.take_queries(lds, 0);
  // A wave without rows does not multiply.
  const bool has_rows = place.first_row + P::first_row_of_wave() < place.rows;

  int at = 2 * P::wave_group();
  NO_UNROLL for (int first = place.begin; first < place.end; first += P::kWaveGroups * P::kKeys) {
    const int t = first + P::wave_group() * P::kKeys;
    if (first != place.begin) {
      wait_for_copies();
      wave_group_barrier<P>();  // all waves have loaded this block and finished the previous one
    }
    if (has_rows && t < place.end) {
      typename P::Scores scores;
      gemms.multiply_keys(lds, scores, at, [&](int d) { blocks.begin(at ^ 1, d, P::kD); });
      finish_plain_scores<P>(scores, place, t);
      softmax.template add_lazily<T>(scores, gemms, args.layout.scores.exponent);
      gemms.multiply_values(lds, scores, at);
    } else {
      blocks.begin(at ^ 1, 0, 1);
    }
    at ^= 1;
  }
  wait_for_copies();  // copies of the block after the last one: the caller may reuse this LDS
}

// Adds the partial sums of the two wave groups. Each group keeps half of the rows and receives the other group's sums
// for these rows.
template <class P>
DEVICE void merge_wave_groups(typename P::Lds& lds, P& gemms, AttentionSoftmax<P>& softmax, float exponent) {
  static_assert(P::kWaveGroups == 2, "exactly one other wave group");
  const int group = P::wave_group();
  barrier();  // all waves have finished with K and V
  gemms.send_output(lds);
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    if (P::keeps(slot)) continue;
    const int at = P::kExchangedOutputs + slot % P::kKept * 2;
    *P::exchange_at(lds, group, at) = softmax.highest[slot];
    *P::exchange_at(lds, group, at + 1) = softmax.sum[slot];
  }
  barrier();
  float mine[P::kSlots], theirs[P::kSlots];
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    if (!P::keeps(slot)) continue;
    const int at = P::kExchangedOutputs + slot % P::kKept * 2;
    const float other = *P::exchange_at(lds, 1 - group, at);
    const float highest = max_float(softmax.highest[slot], other);
    const float shift = highest == -infinity() ? 0.0f : highest;
    mine[slot] = exp2_fast((softmax.highest[slot] - shift) * exponent);
    theirs[slot] = exp2_fast((other - shift) * exponent);
    softmax.highest[slot] = highest;
    softmax.sum[slot] = fused_multiply_add(*P::exchange_at(lds, 1 - group, at + 1), theirs[slot],
                                           softmax.sum[slot] * mine[slot]);
  }
  gemms.receive_output(lds, mine, theirs);
}

// Stores the results of a work-group after the loop over its keys.
template <class T, class P, bool kPlain>
DEVICE void finish_attention(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& lds,
                             P& gemms, AttentionSoftmax<P>& softmax) {
  const AttentionScores& settings = place.layout.scores;
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) { softmax.sum[slot] = P::row_sum(softmax.sum[slot]); }
  if constexpr (P::kWaveGroups > 1) merge_wave_groups(lds, gemms, softmax, settings.exponent);
  const int32_t flags = settings.flags;
  if ((flags & (kAttentionSplit | kAttentionSink)) == kAttentionSink) {
    const T* const sinks = global(static_cast<const T*>(lds.extras.nonfinite));
    constexpr float kRaised = sizeof(T) == 2 ? kAttentionRaised : 0.0f;
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      const int head = place.first_head + place.row_or_last(P::row(slot)).head;
      softmax.sum[slot] += sink_term(sinks != nullptr ? to_float(sinks[head]) : 0.0f, softmax.highest[slot],
                                     settings.exponent, kRaised);
    }
  }
  if ((flags & kAttentionSplit) != 0) {
    store_split<T, P>(place, lds.extras, gemms, softmax);
  } else {
    NO_UNROLL for (int part = 0; part < P::kRowParts; ++part) {
      store_output<T, P, kPlain>(args, place, lds, gemms, softmax, part);
    }
  }
}

template <class T, class P, bool kPlain>
DEVICE void fused_attention(const AttentionArgs& args) {
  static_assert(sizeof(typename P::Lds) == P::kShapeLds, "the plan requests as much");
  LARGE_SHARED(lds, typename P::Lds);
  const AttentionPlace<P> place(args.layout, args.last_keys());
  if (!place.is_used) return;
  P gemms;
  AttentionSoftmax<P> softmax;
  if constexpr (P::kDoubleBuffered) {
    static_assert(kPlain, "no registers for bias, mask and softcap");
    multiply_double_buffered<T, P>(args, place, lds, gemms, softmax);
  } else {
    multiply_single_buffered<T, P, kPlain>(args, place, lds, gemms, softmax);
  }
  if constexpr (kGcn || (kWave == 64 && !kPlain)) {
    // Computes the members of `place` again: during the loop, there are too few scalar registers to keep them.
    const AttentionPlace<P> same_place(reload<true>(args).layout, args.last_keys());
    finish_attention<T, P, kPlain>(args, same_place, lds, gemms, softmax);
  } else {
    finish_attention<T, P, kPlain>(args, place, lds, gemms, softmax);
  }
}

// The sums of the work-items with the same columns.
struct CombineLds {
  static constexpr int kMaxDown = kAttentionThreads / (kAttentionHeads[0] / 4);
  float highest[kMaxDown], sum[kMaxDown];
  float o[4 * kAttentionThreads];
};

// The merge of some splits of a row: the highest score, the sum of the probabilities, and four columns of p V. The last
// two are relative to the highest score.
struct MergedSplits {
  float highest = -infinity(), sum = 0, value[4] = {};

  // Merges every `down`-th split from `split` on, several at the same time. `first`: index of the row in the first
  // split. The statistics of unused splits are undefined.
  DEVICE void add(const AttentionCombineArgs& args, const KeyRange& range, size_t first, int split, int down,
                  int column) {
    constexpr int kAtOnce = 4;
    const float *partial = args.partial, *statistics = args.statistics;
    const auto last = static_cast<int>(args.splits.d) - 1;
    for (; split <= last; split += down * kAtOnce) {
      float highest_of[kAtOnce], sum_of[kAtOnce];
      Pack<float> o_of[kAtOnce];
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        const auto row =
            static_cast<size_t>(min_int(split + u * down, last)) * static_cast<size_t>(args.block_rows) +
            first;
        highest_of[u] = statistics[2 * row];
        sum_of[u] = statistics[2 * row + 1];
        o_of[u] = load_pack(partial + row * static_cast<size_t>(args.head_size) + column);
      }
      const auto is_used = [&](int u) { return split + u * down <= last && range.has(split + u * down); };
      float most = highest;
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        if (is_used(u)) most = max_float(most, highest_of[u]);
      }
      const float shift = most == -infinity() ? 0.0f : most;
      const float scaled = exp2_fast((highest - shift) * args.exponent);
      highest = most;
      sum *= scaled;
      UNROLL for (int e = 0; e < 4; ++e) value[e] *= scaled;
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        if (!is_used(u)) continue;
        const float factor = exp2_fast((highest_of[u] - shift) * args.exponent);
        sum = fused_multiply_add(sum_of[u], factor, sum);
        UNROLL for (int e = 0; e < 4; ++e) value[e] = fused_multiply_add(o_of[u].v[e], factor, value[e]);
      }
    }
  }
};

// A work-group merges the splits of one row. The work-items with the same columns share the splits.
template <class T>
DEVICE void attention_combine(const AttentionCombineArgs& args) {
  SHARED(lds, CombineLds);
  const int32_t *nonfinite = args.nonfinite, *last_keys = args.last_keys;
  const T* sinks = args.sinks;
  T* o = args.o;
  const AttentionStrides& strides = args.strides;
  const AttentionSizes& sizes = args.sizes;
  const Divisor &rows = args.rows, &queries = args.queries, &heads = args.heads;
  const float exponent = args.exponent;
  const auto id = static_cast<uint32_t>(block_x());
  const uint32_t all_heads = divide(id, rows), r = id - all_heads * rows.d;
  const uint32_t batch = divide(all_heads, heads);
  const KeyRange range(sizes, args.flags, args.splits, last_keys, static_cast<int>(batch));
  const auto block_rows = static_cast<uint32_t>(args.block_rows), block = r / block_rows;
  const uint32_t row_blocks = (rows.d + block_rows - 1) / block_rows;
  const size_t first =
      static_cast<size_t>(all_heads * row_blocks + block) * args.splits.d * block_rows + r % block_rows;
  const int across = args.head_size / 4, down = kAttentionThreads / across;
  const int own = thread_x() / across, column = thread_x() % across * 4;
  MergedSplits merged;
  merged.add(args, range, first, own, down, column);
  if (column == 0) {
    lds.highest[own] = merged.highest;
    lds.sum[own] = merged.sum;
  }
  store_pack(lds.o + 4 * thread_x(),
             Pack<float>{{merged.value[0], merged.value[1], merged.value[2], merged.value[3]}});
  barrier();
  if (thread_x() >= sizes.Dv) return;

  float most = -infinity(), total = 0, y = 0;
  for (int i = 0; i < down; ++i) most = max_float(most, lds.highest[i]);
  const float shift = most == -infinity() ? 0.0f : most;
  for (int i = 0; i < down; ++i) {
    const float factor = exp2_fast((lds.highest[i] - shift) * exponent);
    total = fused_multiply_add(lds.sum[i], factor, total);
    y = fused_multiply_add(lds.o[i * args.head_size + thread_x()], factor, y);
  }
  const uint32_t group_head = divide(r, queries);
  const uint32_t query = r - group_head * queries.d;
  const auto head = (all_heads - batch * heads.d) * divide(rows.d, queries) + group_head;
  if ((args.flags & kAttentionSink) != 0) {
    total += sink_term(sinks != nullptr ? to_float(sinks[head]) : 0.0f, most, exponent, args.raised);
  }
  const int position = static_cast<int>(query) + range.position;
  const int from = first_unread(total, position + sizes.right + 1, sizes.T, args.flags);
  y = from == 0 ? 0.0f : y / total;
  if (nonfinite != nullptr) {
    const int parts = nonfinite_parts(sizes.T);
    nonfinite += static_cast<size_t>(all_heads) * static_cast<size_t>(parts * sizes.Dv);
    const int unread = first_read(sizes, position, args.flags) / kAttentionNonfiniteKeys;
    if (last_nonfinite(nonfinite, parts, sizes.Dv, thread_x(), unread) >= from) y = not_a_number();
  }
  o[batch * strides.b + head * strides.h + int64_t{query} * strides.row +
    int64_t{thread_x()} * strides.column] = from_float<T>(y);
}

template <class T>
struct NonfiniteLds {
  int32_t last[kAttentionThreads][Pack<T>::kSize];
};

// Memory-bound: reads V once.
template <class T>
DEVICE void attention_nonfinite(const AttentionNonfiniteArgs& args) {
  SHARED(lds, NonfiniteLds<T>);
  const T* v = args.v;
  int32_t* nonfinite = args.nonfinite;
  const AttentionStrides& strides = args.strides;
  const int32_t Dv = args.Dv, across = args.across;
  const Divisor &parts = args.parts, &heads = args.heads;
  constexpr int kSize = Pack<T>::kSize;
  const auto id = static_cast<uint32_t>(block_x());
  const uint32_t all_heads = divide(id, parts), part = id - all_heads * parts.d;
  const uint32_t batch = divide(all_heads, heads);
  const int d = (thread_x() & (across - 1)) * kSize, first = thread_x() / across,
            step = kAttentionThreads / across;
  v += batch * strides.b + (all_heads - batch * heads.d) * strides.h + int64_t{d} * strides.column;
  const int begin = static_cast<int>(part) * kAttentionNonfiniteKeys;
  const int end = min_int(begin + kAttentionNonfiniteKeys, args.keys);
  int last[kSize];
  UNROLL for (int e = 0; e < kSize; ++e) last[e] = -1;
  if (d < Dv && args.vectors != 0) {
    for (int t = begin + first; t < end; t += step) {
      const Pack<T> pack = load_pack(v + int64_t{t} * strides.row);
      UNROLL for (int e = 0; e < kSize; ++e) last[e] = is_finite(pack.v[e]) ? last[e] : t;
    }
  } else if (d < Dv) {
    for (int t = begin + first; t < end; t += step) {
      UNROLL for (int e = 0; e < kSize; ++e) {
        const int at = min_int(d + e, Dv - 1) - d;
        const T x = v[int64_t{t} * strides.row + int64_t{at} * strides.column];
        last[e] = is_finite(x) ? last[e] : t;
      }
    }
  }
  UNROLL for (int e = 0; e < kSize; ++e) lds.last[thread_x()][e] = last[e];
  barrier();
  if (thread_x() >= Dv) return;
  int most = -1;
  for (int i = 0; i < step; ++i) {
    most = max_int(most, lds.last[i * across + thread_x() / kSize][thread_x() % kSize]);
  }
  nonfinite[static_cast<size_t>(id) * static_cast<size_t>(Dv) + static_cast<size_t>(thread_x())] = most;
}

// kUsed: see MatrixAttention.
template <class T, int kHead, int kUsed, bool kPlain, AttentionRows kRows>
struct AttentionOf {
  static constexpr bool kMatrix = sizeof(T) == 2 ? kMatrixF16 : kMatrixF32;
  static constexpr bool kDoubleBuffered = kMatrix && kPlain && kCopiesToLds;
  static constexpr AttentionShape kShape =
      attention_shape(kMatrix, kWave, kLdsBytes, kHead, sizeof(T), kPlain, kRows);
};
// Instantiates only the class that the target uses.
template <class T, int kHead, int kUsed, class Of, bool kMatrix>
struct AttentionGemms {
  static constexpr AttentionShape kShape = Of::kShape;
  struct Type
      : MatrixAttention<T, kHead, kUsed, kShape.waves, kShape.rows, kShape.keys, kShape.queries_in_lds,
                        Of::kDoubleBuffered, kShape.wave_groups,
                        kShape.row_parts(Instruction<T>::kLoadsRows, Of::kDoubleBuffered, sizeof(T))> {
    static constexpr LaunchBounds kBounds = {Type::kThreads,
                                             {kShape.sharing, kSharesRegisters ? kShape.sharing : 0}};
    static constexpr int kShapeLds =
        kShape.lds_bytes(true, Instruction<T>::kLoadsRows, Of::kDoubleBuffered, sizeof(T));
  };
};
template <class T, int kHead, int kUsed, class Of>
struct AttentionGemms<T, kHead, kUsed, Of, false> {
  static constexpr AttentionShape kShape = Of::kShape;
  struct Type : VectorAttention<T, kHead, kShape.waves, kShape.rows, kShape.keys, kShape.parts> {
    static constexpr LaunchBounds kBounds = {Type::kThreads, kShape.sharing};
    static constexpr int kShapeLds = kShape.lds_bytes(false, false, false, sizeof(T));
  };
};
template <class T, int kHead, int kUsed, bool kPlain, AttentionRows kRows,
          class Of = AttentionOf<T, kHead, kUsed, kPlain, kRows>>
using Gemms = typename AttentionGemms<T, kHead, kUsed, Of, Of::kMatrix>::Type;

}  // namespace graphopt::hip

using namespace graphopt::hip;

// A macro because a template cannot make the name of a kernel.
#define ATTENTION_KERNEL(name, T, kHead, kUsed, kPlain, kRows)                                             \
  KERNEL_OF(fused_attention_##name,                                                                        \
            (fused_attention<T, Gemms<T, kHead, kUsed, kPlain, AttentionRows::kRows>, kPlain>),            \
            (Gemms<T, kHead, kUsed, kPlain, AttentionRows::kRows>::kBounds), AttentionArgs, q, k, v, bias, \
            mask, o, partial, statistics, nonfinite)

ATTENTION_KERNEL(plain_64_f32, float, 64, 64, true, kFew)
ATTENTION_KERNEL(plain_128_f32, float, 128, 128, true, kFew)
ATTENTION_KERNEL(plain_256_f32, float, 256, 256, true, kFew)
ATTENTION_KERNEL(64_f32, float, 64, 64, false, kFew)
ATTENTION_KERNEL(128_f32, float, 128, 128, false, kFew)
ATTENTION_KERNEL(256_f32, float, 256, 256, false, kFew)
ATTENTION_KERNEL(plain_64_f16, half_t, 64, 64, true, kFew)
ATTENTION_KERNEL(plain_128_f16, half_t, 128, 128, true, kFew)
ATTENTION_KERNEL(plain_256_f16, half_t, 256, 256, true, kFew)
ATTENTION_KERNEL(64_f16, half_t, 64, 64, false, kFew)
ATTENTION_KERNEL(128_f16, half_t, 128, 128, false, kFew)
ATTENTION_KERNEL(256_f16, half_t, 256, 256, false, kFew)
#if !GRAPHOPT_MFMA && GRAPHOPT_WAVE != 64
ATTENTION_KERNEL(plain_many_64_f32, float, 64, 64, true, kMany)
ATTENTION_KERNEL(many_64_f32, float, 64, 64, false, kMany)
#if !defined(__GFX9__)  // attention_has_many
ATTENTION_KERNEL(plain_many_128_f32, float, 128, 128, true, kMany)
ATTENTION_KERNEL(many_128_f32, float, 128, 128, false, kMany)
#endif
#endif
#if defined(__CUDACC__)
ATTENTION_KERNEL(plain_many_64_f16, half_t, 64, 64, true, kMany)
ATTENTION_KERNEL(plain_many_48_f16, half_t, 64, 48, true, kMany)
ATTENTION_KERNEL(plain_96_f16, half_t, 128, 96, true, kFew)
ATTENTION_KERNEL(plain_ping_pong_96_f16, half_t, 128, 96, true, kPingPong)
ATTENTION_KERNEL(plain_ping_pong_64_f16, half_t, 64, 64, true, kPingPong)
ATTENTION_KERNEL(plain_ping_pong_128_f16, half_t, 128, 128, true, kPingPong)
ATTENTION_KERNEL(plain_pairs_96_f16, half_t, 128, 96, true, kPairs)
ATTENTION_KERNEL(plain_pairs_128_f16, half_t, 128, 128, true, kPairs)
#endif
FLOAT_KERNELS(fused_attention_combine, attention_combine<T>, kAttentionThreads, AttentionCombineArgs, partial,
              statistics, nonfinite, last_keys, sinks, o)
FLOAT_KERNELS(fused_attention_nonfinite, attention_nonfinite<T>, kAttentionThreads, AttentionNonfiniteArgs, v,
              nonfinite)
