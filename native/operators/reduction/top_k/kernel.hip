// TopK, ArgMax and ArgMin. Elements are compared by unsigned keys that have the same order as the elements. NaN has the
// largest key.
//
// Bound by memory if a row fits into one chunk. Longer rows are sorted chunk by chunk, and only candidates for the
// first K entries are kept. There are no sums, and the order of work-groups does not matter: the result is the
// same in each run. scripts/gpu_bench.py compares the kernels with PyTorch.
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/reduction/top_k/args.h"

namespace graphopt::hip {

// Returns a key that grows with x. 0 and -0 are equal, and NaN of either sign is the largest.
DEVICE uint32_t key_of_float(float x) {
  const auto bits = bit_cast<uint32_t>(x + 0.0f);  // turns -0 into 0
  const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  return x != x ? ~0u : key;
}

template <class T>
DEVICE T element(const void* x, size_t i) {
  return static_cast<const T*>(x)[i];
}

// The type of an element, unsigned for integers, and that of its key.
template <class T, class K>
struct ElementAndKey {
  using Type = T;
  using Key = K;
};
template <Ordered kOrder>
struct ElementOf : ElementAndKey<uint8_t, uint32_t> {};
template <>
struct ElementOf<Ordered::kFloat> : ElementAndKey<float, uint32_t> {};
template <>
struct ElementOf<Ordered::kHalf> : ElementAndKey<half_t, uint32_t> {};
template <>
struct ElementOf<Ordered::kInt64> : ElementAndKey<uint64_t, uint64_t> {};
template <>
struct ElementOf<Ordered::kUint64> : ElementAndKey<uint64_t, uint64_t> {};
template <>
struct ElementOf<Ordered::kInt32> : ElementAndKey<uint32_t, uint32_t> {};
template <>
struct ElementOf<Ordered::kUint32> : ElementAndKey<uint32_t, uint32_t> {};
template <>
struct ElementOf<Ordered::kInt16> : ElementAndKey<uint16_t, uint32_t> {};
template <>
struct ElementOf<Ordered::kUint16> : ElementAndKey<uint16_t, uint32_t> {};

template <Ordered kOrder>
constexpr bool kIsFloat = kOrder == Ordered::kFloat || kOrder == Ordered::kHalf;

template <Ordered kOrder>
DEVICE typename ElementOf<kOrder>::Key key_of(typename ElementOf<kOrder>::Type x) {
  if constexpr (kIsFloat<kOrder>) {
    return key_of_float(to_float(x));
  } else if constexpr (kOrder == Ordered::kInt64) {
    return x ^ uint64_t{1} << 63;
  } else if constexpr (kOrder == Ordered::kInt32) {
    return x ^ 0x80000000u;
  } else if constexpr (kOrder == Ordered::kInt16) {
    return x ^ 0x8000u;
  } else if constexpr (kOrder == Ordered::kInt8) {
    return x ^ 0x80u;
  } else {
    return x;
  }
}

template <Ordered kOrder>
struct OrderOf {
  static constexpr Ordered kValue = kOrder;
};

// Calls find with the order as a type.
template <class Find>
DEVICE auto in_order(Ordered order, const Find& find) {
  switch (order) {
    case Ordered::kFloat:
      return find(OrderOf<Ordered::kFloat>());
    case Ordered::kHalf:
      return find(OrderOf<Ordered::kHalf>());
    case Ordered::kInt64:
      return find(OrderOf<Ordered::kInt64>());
    case Ordered::kInt32:
      return find(OrderOf<Ordered::kInt32>());
    case Ordered::kInt8:
      return find(OrderOf<Ordered::kInt8>());
    case Ordered::kInt16:
      return find(OrderOf<Ordered::kInt16>());
    case Ordered::kUint16:
      return find(OrderOf<Ordered::kUint16>());
    case Ordered::kUint32:
      return find(OrderOf<Ordered::kUint32>());
    case Ordered::kUint64:
      return find(OrderOf<Ordered::kUint64>());
    default:
      return find(OrderOf<Ordered::kUint8>());
  }
}

DEVICE uint64_t key_at(const void* x, size_t i, Ordered order) {
  return in_order(order, [&](auto of) {
    return uint64_t{key_of<of.kValue>(element<typename ElementOf<of.kValue>::Type>(x, i))};
  });
}

DEVICE void copy_element(void* y, size_t to, const void* x, size_t from, Ordered order) {
  switch (order) {
    case Ordered::kInt64:
    case Ordered::kUint64:
      static_cast<uint64_t*>(y)[to] = element<uint64_t>(x, from);
      break;
    case Ordered::kFloat:
    case Ordered::kInt32:
    case Ordered::kUint32:
      static_cast<uint32_t*>(y)[to] = element<uint32_t>(x, from);
      break;
    case Ordered::kHalf:
    case Ordered::kInt16:
    case Ordered::kUint16:
      static_cast<uint16_t*>(y)[to] = element<uint16_t>(x, from);
      break;
    default:
      static_cast<uint8_t*>(y)[to] = element<uint8_t>(x, from);
  }
}

struct Entry {
  uint64_t key;
  uint32_t index;
};

DEVICE bool comes_first(const Entry& a, const Entry& b) {
  return a.key > b.key || (a.key == b.key && a.index < b.index);
}

// Returns the offset of entry i of a row in a tensor [outer, length, inner]. A row has one outer and one
// inner index.
DEVICE size_t entry_offset(uint32_t row, uint32_t i, uint32_t length, const Divisor& inner) {
  const uint32_t outer = divide(row, inner);
  return (static_cast<size_t>(outer) * length + i) * inner.d + (row - outer * inner.d);
}

template <class Args>
DEVICE void write_result(const Args& args, uint32_t row, uint32_t i, uint32_t index, uint32_t K) {
  int64_t* y_indices = args.y_indices;
  void* y = args.y.address;
  const size_t to = entry_offset(row, i, K, args.inner);
  copy_element(y, to, args.x.address, entry_offset(row, index, args.R, args.inner), args.order);
  y_indices[to] = index;
}

struct SortLds {
  uint64_t keys[kTopKChunk];
  uint32_t indices[kTopKChunk];
};

// A bitonic sort; `size` is a power of two.
DEVICE void sort_chunk(SortLds& lds, uint32_t size, uint32_t first, uint32_t threads) {
  for (uint32_t block = 2; block <= size; block *= 2) {
    for (uint32_t step = block / 2; step > 0; step /= 2) {
      barrier();
      for (uint32_t i = first; i < size / 2; i += threads) {
        const uint32_t low = 2 * (i & ~(step - 1)) + (i & (step - 1)), high = low + step;
        const Entry a = {lds.keys[low], lds.indices[low]}, b = {lds.keys[high], lds.indices[high]};
        const bool forward = (low & block) == 0;
        if (forward ? comes_first(b, a) : comes_first(a, b)) {
          lds.keys[low] = b.key;
          lds.indices[low] = b.index;
          lds.keys[high] = a.key;
          lds.indices[high] = a.index;
        }
      }
    }
  }
  barrier();
}

DEVICE void sort_and_keep(const TopKSortArgs& args) {
  SHARED(lds, SortLds);
  const uint64_t* keys = args.keys;
  const uint32_t* indices = args.indices;
  uint64_t* next_keys = args.next_keys;
  uint32_t* next_indices = args.next_indices;
  const auto threads = static_cast<uint32_t>(args.threads);
  const uint32_t group = args.first + static_cast<uint32_t>(block_x());
  const uint32_t row = divide(group, args.chunks), chunk = group - row * args.chunks.d;
  const auto first = static_cast<uint32_t>(thread_x());
  const uint32_t begin = chunk * kTopKChunk;
  for (uint32_t i = first; i < args.size; i += threads) {
    Entry entry = {0, kNoEntry};
    if (begin + i < args.count) {
      if (args.from_x != 0) {
        entry.index = begin + i;
        entry.key = key_at(args.x.address, entry_offset(row, begin + i, args.R, args.inner), args.order);
        if (args.smallest != 0) entry.key = ~entry.key;
      } else {
        const size_t at = static_cast<size_t>(row) * args.count + begin + i;
        entry = {keys[at], indices[at]};
      }
    }
    lds.keys[i] = entry.key;
    lds.indices[i] = entry.index;
  }
  sort_chunk(lds, args.size, first, threads);
  for (uint32_t i = first; i < args.keep; i += threads) {
    if (args.to_y != 0) {
      write_result(args, row, i, lds.indices[i], args.keep);
    } else {
      const size_t at = static_cast<size_t>(group) * args.keep + i;
      next_keys[at] = lds.keys[i];
      next_indices[at] = lds.indices[i];
    }
  }
}

DEVICE void merge_runs(const TopKMergeArgs& args) {
  const uint64_t* keys = args.keys;
  const uint32_t* indices = args.indices;
  uint64_t* next_keys = args.next_keys;
  uint32_t* next_indices = args.next_indices;
  const uint32_t at = work_item(kTopKThreads);
  if (at >= args.total) return;
  const uint32_t row = divide(at, args.count), in_row = at - row * args.count.d;
  const uint32_t run = divide(in_row, args.run), in_run = in_row - run * args.run.d;
  const Entry mine = {keys[at], indices[at]};
  uint32_t rank = in_run;
  const uint32_t other = run ^ 1;
  if (other < args.runs) {
    // Counts the entries of the other run that come before this entry. Equal entries are padding; those of the even
    // run come first.
    const size_t from = static_cast<size_t>(row) * args.count.d + static_cast<size_t>(other) * args.run.d;
    uint32_t low = 0, high = args.run.d;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      const Entry middle_entry = {keys[from + middle], indices[from + middle]};
      const bool before = run % 2 == 0 ? comes_first(middle_entry, mine) : !comes_first(mine, middle_entry);
      if (before) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    rank += low;
  }
  if (rank >= args.next) return;
  if (args.to_y != 0) {
    write_result(args, row, rank, mine.index, args.next);
    return;
  }
  const uint32_t pairs = (args.runs + 1) / 2;
  const size_t to = (static_cast<size_t>(row) * pairs + run / 2) * args.next + rank;
  next_keys[to] = mine.key;
  next_indices[to] = mine.index;
  // A run without a partner is padded.
  if (other >= args.runs && rank + args.run.d < args.next) {
    next_keys[to + args.run.d] = 0;
    next_indices[to + args.run.d] = kNoEntry;
  }
}

// Loads that a work-item issues before it waits for the first one.
constexpr int kLoadsInFlight = 8;

// The elements of a work-item are from, from + step, ... below end, relative to `base`. Their indices along the axis
// are first, first + slices, ...
struct ArgWalk {
  size_t base, from, end, step;
  uint32_t first, slices;
};

// In both ArgMax and ArgMin NaN comes first.
template <Ordered kOrder>
DEVICE typename ElementOf<kOrder>::Key arg_key(typename ElementOf<kOrder>::Type x, bool smallest) {
  if constexpr (kIsFloat<kOrder>) {
    return key_of_float(smallest ? -to_float(x) : to_float(x));
  } else {
    const auto key = key_of<kOrder>(x);
    return smallest ? ~key : key;
  }
}

// The first entry, in sorted order, of the visited elements, which must be visited in the order of their indices. Of
// equal elements the first one is kept, or, with args.last, the last one.
template <Ordered kOrder>
struct FirstSeen {
  using T = typename ElementOf<kOrder>::Type;
  bool smallest, last;
  typename ElementOf<kOrder>::Key key;
  uint32_t index;

  DEVICE FirstSeen(const ArgArgs& args, T x, uint32_t at)
      : smallest(args.smallest != 0), last(args.last != 0), key(arg_key<kOrder>(x, smallest)), index(at) {}

  DEVICE void visit(T x, uint32_t at) {
    const auto other = arg_key<kOrder>(x, smallest);
    const bool wins = other > key || (last && other == key);
    key = wins ? other : key;
    index = wins ? at : index;
  }

  DEVICE Entry entry(const ArgArgs& args) const { return {key, last ? args.R - 1 - index : index}; }
};

template <Ordered kOrder>
DEVICE Entry first_of_elements(const ArgArgs& args, const ArgWalk& walk) {
  using T = typename ElementOf<kOrder>::Type;
  if (walk.from >= walk.end) return {0, kNoEntry};
  const T* const x = static_cast<const T*>(args.x) + walk.base;
  FirstSeen<kOrder> seen(args, x[walk.from], walk.first);
  uint32_t index = walk.first;
  size_t at = walk.from;
  NO_UNROLL for (; at + (kLoadsInFlight - 1) * walk.step < walk.end; at += kLoadsInFlight * walk.step) {
    T values[kLoadsInFlight];
    UNROLL for (int k = 0; k < kLoadsInFlight; ++k) values[k] = x[at + static_cast<size_t>(k) * walk.step];
    UNROLL for (int k = 0; k < kLoadsInFlight; ++k) {
      seen.visit(values[k], index);
      index += walk.slices;
    }
  }
  NO_UNROLL for (; at < walk.end; at += walk.step) {
    seen.visit(x[at], index);
    index += walk.slices;
  }
  return seen.entry(args);
}

// Returns the first entry of the elements that this work-item reads. The work-items of a row read its `count`
// elements in adjacent packs.
template <Ordered kOrder>
DEVICE Entry first_of_packs(const ArgArgs& args, size_t base, uint32_t thread) {
  using T = typename ElementOf<kOrder>::Type;
  constexpr uint32_t kSize = Pack<T>::kSize, kPacks = 2;
  const T* const x = static_cast<const T*>(args.x) + base;
  if (!is_pack_aligned(x)) {
    return first_of_elements<kOrder>(args, {base, thread, args.count, kTopKThreads, thread, kTopKThreads});
  }
  const uint32_t packed_count = args.count / kSize * kSize;
  FirstSeen<kOrder> seen(args, x[0], 0);
  NO_UNROLL for (uint32_t at = thread * kSize; at < packed_count; at += kPacks * kTopKThreads * kSize) {
    Pack<T> packs[kPacks];
    UNROLL for (uint32_t p = 0; p < kPacks; ++p) {
      const uint32_t from = at + p * kTopKThreads * kSize;
      packs[p] = load_pack(x + (from < packed_count ? from : at));
    }
    UNROLL for (uint32_t p = 0; p < kPacks; ++p) {
      const uint32_t from = at + p * kTopKThreads * kSize;
      if (from >= packed_count) break;
      UNROLL for (uint32_t j = 0; j < kSize; ++j) seen.visit(packs[p].v[j], from + j);
    }
  }
  if (packed_count + thread < args.count) seen.visit(x[packed_count + thread], packed_count + thread);
  return seen.entry(args);
}

DEVICE Entry first_of_entries(const ArgArgs& args, const ArgWalk& walk) {
  const uint64_t* const keys = static_cast<const uint64_t*>(args.keys) + walk.base;
  const uint32_t* const indices = static_cast<const uint32_t*>(args.indices) + walk.base;
  Entry best = {0, kNoEntry};
  NO_UNROLL for (size_t at = walk.from; at < walk.end; at += walk.step) {
    const Entry entry = {keys[at], indices[at]};
    if (comes_first(entry, best)) best = entry;
  }
  return best;
}

DEVICE int64_t arg_index(const ArgArgs& args, const Entry& best) {
  return args.last != 0 ? args.R - 1 - best.index : best.index;
}

struct ArgLds {
  uint64_t keys[kTopKThreads / kWave];
  uint32_t indices[kTopKThreads / kWave];
};

template <class Key>
DEVICE Key largest_of_wave(Key key) {
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) {
    const Key other = from_lane(key, lane_id() ^ mask);
    key = other > key ? other : key;
  }
  return key;
}

DEVICE Entry first_of_wave(const ArgArgs& args, const Entry& own) {
  const bool is_wide = args.order == Ordered::kInt64 || args.order == Ordered::kUint64;
  const uint64_t key = is_wide ? largest_of_wave(own.key) : largest_of_wave(static_cast<uint32_t>(own.key));
  uint32_t index = own.key == key ? own.index : kNoEntry;
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) {
    const uint32_t other = shuffle_xor(index, mask);
    index = other < index ? other : index;
  }
  return {key, index};
}

DEVICE void first_of_row(const ArgArgs& args) {
  SHARED(lds, ArgLds);
  int64_t* y = args.y;
  const uint32_t row = static_cast<uint32_t>(args.row) + static_cast<uint32_t>(block_x());
  const auto thread = static_cast<uint32_t>(thread_x());
  const size_t base = static_cast<size_t>(row) * args.count;
  const Entry own =
      args.from_x == 0
          ? first_of_entries(args, {base, thread, args.count, kTopKThreads, thread, kTopKThreads})
          : in_order(args.order,
                     [&](auto order) { return first_of_packs<order.kValue>(args, base, thread); });
  Entry best = first_of_wave(args, own);
  if (lane_id() == 0) {
    lds.keys[wave_id()] = best.key;
    lds.indices[wave_id()] = best.index;
  }
  barrier();
  if (thread != 0) return;
  for (int wave = 1; wave < kTopKThreads / kWave; ++wave) {
    const Entry other = {lds.keys[wave], lds.indices[wave]};
    if (comes_first(other, best)) best = other;
  }
  y[row] = arg_index(args, best);
}

DEVICE void first_of_column(const ArgArgs& args) {
  const uint32_t item = work_item(kTopKThreads);
  if (item >= args.total) return;
  const uint32_t outer = divide(item, args.stride), column = item - outer * args.stride.d;
  const size_t block = static_cast<size_t>(args.count) * args.inner.d;
  const ArgWalk walk = {outer * block,
                        column,
                        block,
                        args.stride.d,
                        divide(column, args.inner),
                        divide(args.stride.d, args.inner)};
  const Entry best = args.from_x == 0 ? first_of_entries(args, walk) : in_order(args.order, [&](auto order) {
    return first_of_elements<order.kValue>(args, walk);
  });
  if (args.to_y != 0) {
    int64_t* y = args.y;
    y[item] = arg_index(args, best);
  } else {
    uint64_t* next_keys = args.next_keys;
    uint32_t* next_indices = args.next_indices;
    next_keys[item] = best.key;
    next_indices[item] = best.index;
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL_OF(top_k_sort, sort_and_keep, kTopKThreads, TopKSortArgs, x, keys, indices, next_keys, next_indices, y,
          y_indices)
KERNEL_OF(top_k_merge, merge_runs, kTopKThreads, TopKMergeArgs, x, keys, indices, next_keys, next_indices, y,
          y_indices)
KERNEL_OF(arg_rows, first_of_row, kTopKThreads, ArgArgs, x, keys, indices, next_keys, next_indices, y)
KERNEL_OF(arg_columns, first_of_column, kTopKThreads, ArgArgs, x, keys, indices, next_keys, next_indices, y)
