// TopK, ArgMax and ArgMin. Numbers are compared as unsigned keys that grow with them, NaN above all.
//
// Bound by memory while rows fit one chunk; longer ones are sorted chunk by chunk, and only what can still be
// among the first goes on. Nothing is added up and no order of work-groups matters: the result is the same in
// each run. scripts/gpu_bench.py sets them beside PyTorch.
#include "device/platform.h"
#include "operators/top_k/args.h"

namespace graphopt::hip {

// Grows with the number whose bits they are; 0 and -0 are equal, and NaN, of either sign, is the largest.
DEVICE uint32_t key_of_float(uint32_t bits, uint32_t sign, uint32_t infinite) {
  const uint32_t all = sign | (sign - 1);
  if ((bits & (sign - 1)) > infinite) return ~0u;
  if (bits == sign) return sign;
  return (bits & sign) != 0 ? ~bits & all : bits | sign;
}

template <class T>
DEVICE T element(const void* x, size_t i) {
  return static_cast<const T*>(x)[i];
}

// The unsigned number with an element's bits, and the type of its key.
template <class T, class K>
struct BitsAndKey {
  using Type = T;
  using Key = K;
};
template <Ordered kOrder>
struct BitsOf : BitsAndKey<uint8_t, uint32_t> {};
template <>
struct BitsOf<Ordered::kFloat> : BitsAndKey<uint32_t, uint32_t> {};
template <>
struct BitsOf<Ordered::kHalf> : BitsAndKey<uint16_t, uint32_t> {};
template <>
struct BitsOf<Ordered::kInt64> : BitsAndKey<uint64_t, uint64_t> {};
template <>
struct BitsOf<Ordered::kUint64> : BitsAndKey<uint64_t, uint64_t> {};
template <>
struct BitsOf<Ordered::kInt32> : BitsAndKey<uint32_t, uint32_t> {};
template <>
struct BitsOf<Ordered::kUint32> : BitsAndKey<uint32_t, uint32_t> {};
template <>
struct BitsOf<Ordered::kInt16> : BitsAndKey<uint16_t, uint32_t> {};
template <>
struct BitsOf<Ordered::kUint16> : BitsAndKey<uint16_t, uint32_t> {};

template <Ordered kOrder>
DEVICE typename BitsOf<kOrder>::Key key_of(typename BitsOf<kOrder>::Type bits) {
  if constexpr (kOrder == Ordered::kFloat) return key_of_float(bits, 0x80000000u, 0x7f800000u);
  if constexpr (kOrder == Ordered::kHalf) return key_of_float(bits, 0x8000u, 0x7c00u);
  if constexpr (kOrder == Ordered::kInt64) return bits ^ uint64_t{1} << 63;
  if constexpr (kOrder == Ordered::kInt32) return bits ^ 0x80000000u;
  if constexpr (kOrder == Ordered::kInt16) return bits ^ 0x8000u;
  if constexpr (kOrder == Ordered::kInt8) return bits ^ 0x80u;
  return bits;
}

template <Ordered kOrder>
DEVICE uint64_t key_at_of(const void* x, size_t i) {
  return key_of<kOrder>(element<typename BitsOf<kOrder>::Type>(x, i));
}

DEVICE uint64_t key_at(const void* x, size_t i, Ordered order) {
  switch (order) {
    case Ordered::kFloat:
      return key_at_of<Ordered::kFloat>(x, i);
    case Ordered::kHalf:
      return key_at_of<Ordered::kHalf>(x, i);
    case Ordered::kInt64:
      return key_at_of<Ordered::kInt64>(x, i);
    case Ordered::kInt32:
      return key_at_of<Ordered::kInt32>(x, i);
    case Ordered::kInt16:
      return key_at_of<Ordered::kInt16>(x, i);
    case Ordered::kInt8:
      return key_at_of<Ordered::kInt8>(x, i);
    case Ordered::kUint64:
      return key_at_of<Ordered::kUint64>(x, i);
    case Ordered::kUint32:
      return key_at_of<Ordered::kUint32>(x, i);
    case Ordered::kUint16:
      return key_at_of<Ordered::kUint16>(x, i);
    default:
      return key_at_of<Ordered::kUint8>(x, i);
  }
}

DEVICE void copy_number(void* y, size_t to, const void* x, size_t from, Ordered order) {
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

// Entry i of x [outer, R, inner] in a row (outer, column).
DEVICE size_t place_of(uint32_t row, uint32_t i, uint32_t length, const Divisor& inner) {
  const uint32_t outer = divide(row, inner);
  return (static_cast<size_t>(outer) * length + i) * inner.d + (row - outer * inner.d);
}

template <class Args>
DEVICE void write_result(const Args& args, uint32_t row, uint32_t i, uint32_t index, uint32_t K) {
  int64_t* which = args.which;
  void* y = args.y.address;
  const size_t to = place_of(row, i, K, args.inner);
  copy_number(y, to, args.x.address, place_of(row, index, args.R, args.inner), args.order);
  which[to] = index;
}

struct SortLds {
  uint64_t keys[kTopKChunk];
  uint32_t indices[kTopKChunk];
};

// Bitonic: `size` is a power of two.
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

DEVICE void sort_and_keep(const TopKSortArgs& args, SortLds& lds) {
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
        entry.key = key_at(args.x.address, place_of(row, begin + i, args.R, args.inner), args.order);
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
    // How many of the other run come before; of equal ones (which only fill up) those of the even run do.
    const size_t from = static_cast<size_t>(row) * args.count.d + static_cast<size_t>(other) * args.run.d;
    uint32_t low = 0, high = args.run.d;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      const Entry there = {keys[from + middle], indices[from + middle]};
      const bool before = run % 2 == 0 ? comes_first(there, mine) : !comes_first(mine, there);
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
  // A run without another one is filled up.
  if (other >= args.runs && rank + args.run.d < args.next) {
    next_keys[to + args.run.d] = 0;
    next_indices[to + args.run.d] = kNoEntry;
  }
}

// How many entries are asked for before the first is waited for.
constexpr int kAhead = 8;

// Where a work-item looks: at the elements from, from + step, ... below end of what begins at `base`, whose
// indices along the axis are first, first + slices, ...
struct ArgWalk {
  size_t base, from, end, step;
  uint32_t first, slices;
};

// In both ArgMax and ArgMin NaN comes first.
template <Ordered kOrder>
DEVICE typename BitsOf<kOrder>::Key arg_key(typename BitsOf<kOrder>::Type bits, bool smallest) {
  using Key = typename BitsOf<kOrder>::Key;
  constexpr bool kFloats = kOrder == Ordered::kFloat || kOrder == Ordered::kHalf;
  constexpr Key kNan = static_cast<Key>(~Key{0});
  const Key key = key_of<kOrder>(bits);
  return smallest && !(kFloats && key == kNan) ? static_cast<Key>(~key) : key;
}

// The entry of x that comes first. Among equal numbers the first one seen stays, or, with args.last, the last.
template <Ordered kOrder>
DEVICE Entry first_of_numbers(const ArgArgs& args, const ArgWalk& walk) {
  using Bits = typename BitsOf<kOrder>::Type;
  if (walk.from >= walk.end) return {0, kNoEntry};
  const Bits* const x = static_cast<const Bits*>(args.x) + walk.base;
  const bool smallest = args.smallest != 0, last = args.last != 0;
  auto best = arg_key<kOrder>(x[walk.from], smallest);
  uint32_t index = walk.first, at_index = walk.first;
  const auto look = [&](Bits bits) {
    const auto key = arg_key<kOrder>(bits, smallest);
    const bool wins = last ? key >= best : key > best;
    best = wins ? key : best;
    index = wins ? at_index : index;
    at_index += walk.slices;
  };
  size_t at = walk.from;
  NO_UNROLL for (; at + (kAhead - 1) * walk.step < walk.end; at += kAhead * walk.step) {
    Bits bits[kAhead];
    UNROLL for (int k = 0; k < kAhead; ++k) bits[k] = x[at + static_cast<size_t>(k) * walk.step];
    UNROLL for (int k = 0; k < kAhead; ++k) look(bits[k]);
  }
  NO_UNROLL for (; at < walk.end; at += walk.step) look(x[at]);
  return {best, last ? args.R - 1 - index : index};
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

DEVICE Entry first_of_strided(const ArgArgs& args, const ArgWalk& walk) {
  if (args.from_x == 0) return first_of_entries(args, walk);
  switch (args.order) {
    case Ordered::kFloat:
      return first_of_numbers<Ordered::kFloat>(args, walk);
    case Ordered::kHalf:
      return first_of_numbers<Ordered::kHalf>(args, walk);
    case Ordered::kInt64:
      return first_of_numbers<Ordered::kInt64>(args, walk);
    case Ordered::kInt32:
      return first_of_numbers<Ordered::kInt32>(args, walk);
    case Ordered::kInt8:
      return first_of_numbers<Ordered::kInt8>(args, walk);
    case Ordered::kInt16:
      return first_of_numbers<Ordered::kInt16>(args, walk);
    case Ordered::kUint16:
      return first_of_numbers<Ordered::kUint16>(args, walk);
    case Ordered::kUint32:
      return first_of_numbers<Ordered::kUint32>(args, walk);
    case Ordered::kUint64:
      return first_of_numbers<Ordered::kUint64>(args, walk);
    default:
      return first_of_numbers<Ordered::kUint8>(args, walk);
  }
}

DEVICE int64_t arg_index(const ArgArgs& args, const Entry& best) {
  return args.last != 0 ? args.R - 1 - best.index : best.index;
}

struct ArgLds {
  uint64_t keys[kTopKThreads / kWave];
  uint32_t indices[kTopKThreads / kWave];
};

DEVICE Entry first_of_wave(Entry best) {
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) {
    const uint32_t low = shuffle_xor(static_cast<uint32_t>(best.key), mask);
    const uint32_t high = shuffle_xor(static_cast<uint32_t>(best.key >> 32), mask);
    const Entry other = {static_cast<uint64_t>(high) << 32 | low, shuffle_xor(best.index, mask)};
    if (comes_first(other, best)) best = other;
  }
  return best;
}

DEVICE void first_of_row(const ArgArgs& args, ArgLds& lds) {
  int64_t* y = args.y;
  const uint32_t row = static_cast<uint32_t>(args.row) + static_cast<uint32_t>(block_x());
  const auto thread = static_cast<uint32_t>(thread_x());
  const size_t base = static_cast<size_t>(row) * args.count;
  Entry best = first_of_strided(args, {base, thread, args.count, kTopKThreads, thread, kTopKThreads});
  best = first_of_wave(best);
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
  const Entry best = first_of_strided(args, {outer * block, column, block, args.stride.d,
                                             divide(column, args.inner), divide(args.stride.d, args.inner)});
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

KERNEL(top_k_sort, kTopKThreads, TopKSortArgs, x, keys, indices, next_keys, next_indices, y, which) {
  SHARED(SortLds, lds);
  sort_and_keep(args, lds);
}

KERNEL(top_k_merge, kTopKThreads, TopKMergeArgs, x, keys, indices, next_keys, next_indices, y, which) {
  merge_runs(args);
}

KERNEL(arg_rows, kTopKThreads, ArgArgs, x, keys, indices, next_keys, next_indices, y) {
  SHARED(ArgLds, lds);
  first_of_row(args, lds);
}

KERNEL(arg_columns, kTopKThreads, ArgArgs, x, keys, indices, next_keys, next_indices, y) {
  first_of_column(args);
}
