// Assigns rows and keys to the work-groups of fused_attention_*, and loads Q, K and V into LDS.
#pragma once

#include "operators/attention/attention/operands.h"

namespace graphopt::hip {

// Copies a block with arbitrary strides, element by element.
template <class P, class T, class Store>
DEVICE void copy_elements(const Block<T>& block, bool key_major, const Store& store) {
  NO_UNROLL for (int at = thread_x(); at < P::kKeys * P::kHead; at += P::kThreads) {
    const int key = key_major ? at % P::kKeys : at / P::kHead;
    const int d = key_major ? at / P::kKeys : at % P::kHead;
    store(key, d, block.element(key, d));
  }
}

// A row of a work-group: a query of one of the heads that share K and V.
struct AttentionRow {
  int head, query;
};

// Returns the first key that is read for a query at a position: the start of the query's window, rounded down to a
// multiple of kAttentionNonfiniteKeys. The keys before it are then entire parts (AttentionNonfiniteArgs).
DEVICE int first_read(const AttentionSizes& sizes, int position, int32_t flags) {
  const int from = position - sizes.left;
  return (flags & kAttentionWindow) == 0 || from < 0
             ? 0
             : from / kAttentionNonfiniteKeys * kAttentionNonfiniteKeys;
}

// The work of a work-group: rows of one batch element and one key/value head, for one split of the keys.
template <class P>
struct AttentionPlace {
  const AttentionLayout& layout;
  int b, head;         // batch element; head of K and V
  int first_head;      // the first head of Q
  uint32_t all_heads;  // (b, head) as one index
  int row_block, split;
  int rows, first_row;  // number of rows that share K and V; the first one of this work-group
  bool is_used;         // false: this split has no keys
  int ahead;            // offset from a query to the last key that it sees
  int first_hidden;     // the first key that causality hides from at least one row
  int last_seen;        // the last key that any query sees; unlimited without kAttentionEndsAtLastKey
  int begin, end;       // the keys [begin, end) of this split that a row may see

  // GCN reads the flags again at each use: a result that is kept during the loop takes two scalar registers.
  DEVICE int32_t flags() const {
    return kGcn ? same_in_wave(opaque(layout.scores.flags)) : layout.scores.flags;
  }
  DEVICE bool causal() const { return (flags() & kAttentionCausal) != 0; }
  DEVICE AttentionRow row_at(int r) const {
    const uint32_t h = divide(static_cast<uint32_t>(r), layout.queries);
    return {static_cast<int>(h), r - static_cast<int>(h * layout.queries.d)};
  }
  DEVICE AttentionRow row_or_last(int r) const { return row_at(min_int(first_row + r, rows - 1)); }
  // Returns the index of the work-group's partial results. It is computed after the loop over the keys to save
  // registers.
  DEVICE size_t id() const {
    const int block = opaque(static_cast<int>(all_heads)) * static_cast<int>(layout.row_blocks.d) + row_block;
    return static_cast<size_t>(block) * layout.splits.d + static_cast<size_t>(split);
  }
  // Returns n such that no work-group with these rows reads a key in the first n parts (AttentionNonfiniteArgs).
  DEVICE int unread_parts() const {
    const AttentionRow low = row_at(opaque(first_row)), high = row_or_last(P::kBlockRows - 1);
    const int lowest = low.head == high.head ? low.query : 0;
    const int position = lowest + layout.sizes.T - layout.sizes.S;
    return first_read(layout.sizes, position, layout.scores.flags) / kAttentionNonfiniteKeys;
  }

  DEVICE AttentionPlace(const AttentionLayout& of, const int32_t* last_keys)
      : layout(of), rows(static_cast<int>(of.sizes.rows)) {
    const AttentionSizes& sizes = layout.sizes;
    // Consecutive work-groups are in different ranges of the grid. A device with several dies starts consecutive
    // work-groups on different dies. Each die then has one range, and its work-groups share K and V in its L2 cache.
    auto id = static_cast<uint32_t>(block_x());
    if (id < layout.groups_of_range * layout.ranges.d) {
      const uint32_t turn = divide(id, layout.ranges), half = layout.groups_of_range / 2;
      uint32_t at = turn;
      if (kCopiesToLds && turn >= half && (flags() & kAttentionPairs) != 0) {
        at = layout.groups_of_range + half - 1 - turn;
      }
      id = (id - turn * layout.ranges.d) * layout.groups_of_range + at;
    }
    const uint32_t rest = divide(id, layout.splits);
    split = static_cast<int>(id - rest * layout.splits.d);
    all_heads = divide(rest, layout.row_blocks);
    row_block = static_cast<int>(rest - all_heads * layout.row_blocks.d);
    if (causal()) row_block = static_cast<int>(layout.row_blocks.d) - 1 - row_block;  // longest blocks first
    b = static_cast<int>(divide(all_heads, layout.heads));
    head = static_cast<int>(all_heads) - b * static_cast<int>(layout.heads.d);
    first_row = row_block * P::kBlockRows;
    first_head = head * static_cast<int>(divide(sizes.rows, layout.queries));

    // The keys of this work-group, and its lowest and highest query, which determine the keys that causality hides.
    const int last_row = min_int(first_row + P::kBlockRows, rows) - 1;
    const AttentionRow low = row_at(first_row), high = row_at(last_row);
    const bool one_head = low.head == high.head;
    const int lowest = one_head ? low.query : 0;
    // In vector registers on AMD, because there are too few scalar registers for all arguments.
    const int32_t flags = layout.scores.flags;
    const KeyRange range(sizes, flags, layout.splits, last_keys, opaque(b));
    is_used = same_in_wave(range.uses(split) ? 1 : 0) != 0;
    ahead = same_in_wave(range.position + sizes.right);
    first_hidden = lowest + ahead + 1;
    last_seen = (flags & kAttentionEndsAtLastKey) != 0 ? range.count - 1 + sizes.right : 0x7fffffff;
    begin = range.first + split * range.of_split;
    end = min_int(begin + range.of_split, range.count);
    if ((flags & kAttentionSkips) != 0) {
      end = min_int(end, (one_head ? high.query : sizes.S - 1) + ahead + 1);
      begin = max_int(begin, first_read(sizes, range.position_of(lowest, flags), flags));
    }
    begin = same_in_wave(begin);
    end = same_in_wave(end);
  }
};

// Loads K and V into LDS, a block at a time. begin_*() starts the loads, which overlap with computation; finish_*()
// completes them and is followed by a barrier.
template <class T, class P>
struct AttentionKeys {
  const AttentionLayout& layout;
  typename P::Lds& lds;
  const T *keys, *values;
  int end;  // end of the keys of this work-group
  bool vector_k, vector_v;

  DEVICE AttentionKeys(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& to)
      : layout(args.layout),
        lds(to),
        end(place.end),
        vector_k((layout.scores.flags & kAttentionVectorK) != 0),
        vector_v((layout.scores.flags & kAttentionVectorV) != 0) {
    const T *k = args.k, *v = args.v;
    keys = k + place.b * layout.k.b + place.head * layout.k.h;
    values = v + place.b * layout.v.b + place.head * layout.v.h;
  }

  DEVICE Block<T> keys_from(int t) const {
    return {keys + int64_t{t} * layout.k.row, layout.k.row, layout.k.column, end - t, layout.sizes.D};
  }
  DEVICE Block<T> values_from(int t) const {
    return {values + int64_t{t} * layout.v.row, layout.v.row, layout.v.column, end - t, layout.sizes.Dv};
  }

  DEVICE void begin_keys(typename P::Staged& staged, int t, int thread) const {
    if (!vector_k) return;
    if constexpr (P::kDirectKeys) {
      P::copy_keys(lds, keys_from(t), thread);
    } else {
      P::load_keys(staged, keys_from(t), thread);
    }
  }
  DEVICE void finish_keys(const typename P::Staged& staged, int t, int thread) const {
    if (!vector_k) {
      copy_elements<P>(keys_from(t), (layout.scores.flags & kAttentionKeyMajorK) != 0,
                       [&](int key, int d, T value) { P::store_key(lds, key, d, value); });
    } else if constexpr (P::kDirectKeys) {
      wait_for_copies();
    } else {
      P::store_keys(lds, staged, keys_from(t), thread);
    }
  }
  DEVICE void begin_values(typename P::Staged& staged, int t, int thread) const {
    if (!vector_v) return;
    if constexpr (P::kDirectValues) {
      P::copy_values(lds, values_from(t), thread);
    } else {
      P::load_values(staged, values_from(t), thread);
    }
  }
  DEVICE void finish_values(const typename P::Staged& staged, int t, int thread) const {
    if (!vector_v) {
      copy_elements<P>(values_from(t), false,
                       [&](int key, int d, T value) { P::store_value(lds, key, d, value); });
    } else if constexpr (P::kDirectValues) {
      wait_for_copies();
    } else {
      P::store_values(lds, staged, values_from(t), thread);
    }
  }
};

// Copies blocks of K and V to LDS directly: the next block is copied during the multiplications of the current one
// (P::kDoubleBuffered).
template <class T, class P>
struct AttentionBlocks {
  static constexpr int kRows = P::kGroupThreads / P::kAcross;  // distance in rows between a work-item's packs

  const AttentionLayout& layout;
  typename P::Lds& lds;
  const T *keys, *values;  // this work-item's first packs of the next block
  int row, d;
  int remaining;  // keys, from this work-item's first key of the next block on

  DEVICE AttentionBlocks(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& to)
      : layout(args.layout),
        lds(to),
        row(thread_x() % P::kGroupThreads / P::kAcross),
        d(thread_x() % P::kAcross * P::kSize),
        remaining(place.end - first_key(place)) {
    const T *k = args.k, *v = args.v;
    const int64_t first = first_key(place);
    keys = k + place.b * layout.k.b + place.head * layout.k.h + first * layout.k.row + d;
    values = v + place.b * layout.v.b + place.head * layout.v.h + first * layout.v.row + d;
  }
  DEVICE int first_key(const AttentionPlace<P>& place) const {
    return place.begin + P::wave_group() * P::kKeys + row;
  }

  // Starts the copies of part `part` of `parts` of the next block to `buffer`. Keys beyond the last one are zeros.
  DEVICE void begin(int buffer, int part, int parts) {
    T* const to = P::key_at(lds, row, d, buffer);
    UNROLL for (int i = 0; i < P::kPacks; ++i) {
      if (i * parts / P::kPacks != part) continue;
      const bool inside = i * kRows < remaining;
      copy_to_lds(to + i * kRows * P::kRow, keys + static_cast<ptrdiff_t>(i * kRows) * layout.k.row,
                  inside && d < layout.sizes.D);
      copy_to_lds(to + P::kKeyCount + i * kRows * P::kRow,
                  values + static_cast<ptrdiff_t>(i * kRows) * layout.v.row, inside && d < layout.sizes.Dv);
    }
    if (part < parts - 1) return;
    keys += int64_t{P::kWaveGroups * P::kKeys} * layout.k.row;
    values += int64_t{P::kWaveGroups * P::kKeys} * layout.v.row;
    remaining -= P::kWaveGroups * P::kKeys;
  }
};

// Loads Q into LDS for a part of the rows of the work-group. take_queries() reads it.
template <class T, class P>
DEVICE void load_queries(const T* q, const AttentionPlace<P>& place, typename P::Lds& lds, int part) {
  const AttentionLayout& layout = place.layout;
  const int32_t D = layout.sizes.D, flags = layout.scores.flags;
  NO_UNROLL for (int at = thread_x(); at < P::kPartRows * P::kAcross; at += P::kThreads) {
    const int r = P::query_row(at), d = P::query_d(at);
    const int row_of_group = part * P::kPartRows + r;
    const bool inside = place.first_row + row_of_group < place.rows && d < D;
    const AttentionRow row = place.row_or_last(row_of_group);
    const T* p = q + place.b * layout.q.b + (place.first_head + row.head) * layout.q.h +
                 int64_t{row.query} * layout.q.row;
    if constexpr (P::kDirectQueries) {
      if ((flags & kAttentionVectorQ) != 0) {
        P::copy_query(lds, r, d, inside ? p + d : p, inside);
        continue;
      }
    }
    Pack<T> pack = {};
    if (inside) {
      if ((flags & kAttentionVectorQ) != 0) {
        pack = load_pack(p + d);
      } else {
        UNROLL for (int e = 0; e < P::kSize; ++e) {
          if (d + e < D) pack.v[e] = p[int64_t{d + e} * layout.q.column];
        }
      }
    }
    P::store_query(lds, r, d, pack);
  }
}

// Stores the arguments that are used after Q is loaded in LDS. All work-items can read them after the next barrier.
template <class T, class P>
DEVICE void store_extras(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& lds) {
  const AttentionLayout& layout = args.layout;
  const AttentionScores& settings = layout.scores;
  if (thread_x() != 0) return;
  lds.extras = {AttentionExtra<T>::of(args.bias, layout.bias, place.b),
                AttentionExtra<uint8_t>::of(args.mask, layout.mask, place.b),
                settings.scale,
                settings.softcap,
                settings.inverse_softcap,
                settings.mask_value,
                args.o,
                args.partial,
                args.statistics,
                args.nonfinite,
                layout.o,
                place.last_seen,
                0};
}

}  // namespace graphopt::hip
