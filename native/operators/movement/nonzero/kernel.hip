// NonZero: the indices of the nonzero elements, in order. nonzero_count counts the nonzero elements of each part of
// x, and nonzero_starts sums the counts. nonzero_indices then writes the indices of each part after those of the
// parts before it, so x is read twice. Memory-bound, mostly by the indices: a work-group collects its indices in
// LDS, so that adjacent work-items write adjacent indices.
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/movement/nonzero/args.h"

namespace graphopt::hip {

using NonzeroSums = ScanLds<uint32_t, kNonzeroThreads>;

// Returns a bit for each element of the work-item, set if the element is not zero.
template <class T>
DEVICE uint32_t not_zero(const T* x, uint32_t first, uint32_t total, uint64_t mask) {
  constexpr int kSize = Pack<T>::kSize, kPacks = kNonzeroElements / kSize;
  const T bits = static_cast<T>(mask);
  uint32_t found = 0;
  if (first + kNonzeroElements <= total && is_pack_aligned(x + first)) {
    Pack<T> packs[kPacks];
    UNROLL for (int p = 0; p < kPacks; ++p) packs[p] = load_pack(x + first + p * kSize);
    UNROLL for (int j = 0; j < kNonzeroElements; ++j) {
      if ((packs[j / kSize].v[j % kSize] & bits) != 0) found |= 1u << j;
    }
    return found;
  }
  UNROLL for (uint32_t j = 0; j < kNonzeroElements; ++j) {
    if (first + j < total && (x[first + j] & bits) != 0) found |= 1u << j;
  }
  return found;
}

DEVICE uint32_t count_of(uint32_t found) {
  uint32_t count = 0;
  UNROLL for (int j = 0; j < kNonzeroElements; ++j) count += found >> j & 1;
  return count;
}

template <class T>
DEVICE void nonzero_count(const NonzeroCountArgs& args) {
  SHARED(lds, NonzeroSums);
  uint32_t* const counts = args.counts;
  const uint32_t first = work_item(kNonzeroThreads) * kNonzeroElements;
  const uint32_t own = count_of(not_zero<T>(args.x, first, args.total, args.mask));
  const uint32_t all = group_scan(own, lds).all;
  if (thread_x() == 0) counts[block_x()] = all;
}

DEVICE void sum_parts(const NonzeroStartsArgs& args) {
  SHARED(lds, NonzeroSums);
  const uint32_t* const counts = args.counts;
  uint32_t* const starts = args.starts;
  int64_t* const result = args.all;
  uint32_t carry = 0;
  NO_UNROLL for (uint32_t begin = 0; begin < args.parts; begin += kNonzeroThreads * kNonzeroCounts) {
    const uint32_t first = begin + static_cast<uint32_t>(thread_x() * kNonzeroCounts);
    uint32_t own[kNonzeroCounts], sum = 0;
    UNROLL for (uint32_t j = 0; j < kNonzeroCounts; ++j) {
      own[j] = first + j < args.parts ? counts[first + j] : 0;
      sum += own[j];
    }
    const GroupScan<uint32_t> sums = group_scan(sum, lds);
    uint32_t start = carry + sums.before;
    carry += sums.all;
    UNROLL for (uint32_t j = 0; j < kNonzeroCounts; ++j) {
      if (first + j < args.parts) starts[first + j] = start;
      start += own[j];
    }
    barrier();
  }
  if (thread_x() == 0) result[0] = carry;
}

struct NonzeroIndicesLds {
  NonzeroSums sums;
  uint16_t in_part[kNonzeroPart];
};

template <class T>
DEVICE void nonzero_indices(const NonzeroIndicesArgs& args) {
  SHARED(lds, NonzeroIndicesLds);
  const uint32_t* const starts = args.starts;
  const uint32_t part = static_cast<uint32_t>(block_x()), first = part * kNonzeroPart;
  const uint32_t own = static_cast<uint32_t>(thread_x() * kNonzeroElements);
  const uint32_t found = not_zero<T>(args.x, first + own, args.total, args.mask);
  const GroupScan<uint32_t> sums = group_scan(count_of(found), lds.sums);
  uint32_t to = sums.before;
  UNROLL for (uint32_t j = 0; j < kNonzeroElements; ++j) {
    if ((found >> j & 1) != 0) lds.in_part[to++] = static_cast<uint16_t>(own + j);
  }
  barrier();
  int64_t* const y = static_cast<int64_t*>(args.y) + starts[part];
  NO_UNROLL for (auto i = static_cast<uint32_t>(thread_x()); i < sums.all; i += kNonzeroThreads) {
    uint32_t rest = first + lds.in_part[i];
    // Unrolled: only with constant array indices are the sizes kept in registers.
    UNROLL for (int axis = 0; axis < kNonzeroMaxAxes; ++axis) {
      if (axis >= args.axes) break;
      const uint32_t outer = divide(rest, args.sizes[axis]);
      y[static_cast<size_t>(args.axes - 1 - axis) * args.all + i] =
          static_cast<int64_t>(rest - outer * args.sizes[axis].d);
      rest = outer;
    }
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL_OF(nonzero_starts, sum_parts, kNonzeroThreads, NonzeroStartsArgs, counts, starts, all)
BITS_KERNELS(nonzero_count, nonzero_count<T>, kNonzeroThreads, NonzeroCountArgs, x, counts)
BITS_KERNELS(nonzero_indices, nonzero_indices<T>, kNonzeroThreads, NonzeroIndicesArgs, x, starts, y)
