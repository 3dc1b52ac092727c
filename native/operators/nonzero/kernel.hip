// NonZero: the places of the numbers that are not zero, in order. Parts of x are counted, the counts summed,
// and each part writes behind those before it: x is read twice. Bound by memory.
#include "device/platform.h"
#include "operators/nonzero/args.h"

namespace graphopt::hip {

struct NonzeroSums {
  uint32_t of[kNonzeroThreads];
};

// The sum of x over the work-items up to this one; `total`: over all.
DEVICE uint32_t sum_up_to(uint32_t x, NonzeroSums& lds, uint32_t& total) {
  const int thread = thread_x();
  lds.of[thread] = x;
  barrier();
  NO_UNROLL for (int step = 1; step < kNonzeroThreads; step *= 2) {
    const uint32_t before = thread >= step ? lds.of[thread - step] : 0;
    barrier();
    lds.of[thread] += before;
    barrier();
  }
  const uint32_t sum = lds.of[thread];
  total = lds.of[kNonzeroThreads - 1];
  barrier();
  return sum;
}

template <class T>
DEVICE bool is_set(const T* x, uint32_t i, uint32_t total, uint64_t mask) {
  return i < total && (static_cast<uint64_t>(x[i]) & mask) != 0;
}

template <class T>
DEVICE void nonzero_count(const NonzeroCountArgs& args, NonzeroSums& lds) {
  const T* x = args.x;
  uint32_t* counts = args.counts;
  const auto part = static_cast<uint32_t>(block_x());
  uint32_t own = 0, all = 0;
  for (int k = 0; k < kNonzeroPart / kNonzeroThreads; ++k) {
    const uint32_t i = part * kNonzeroPart + static_cast<uint32_t>(k * kNonzeroThreads + thread_x());
    own += is_set(x, i, args.total, args.mask) ? 1 : 0;
  }
  sum_up_to(own, lds, all);
  if (thread_x() == 0) counts[part] = all;
}

DEVICE void sum_parts(const NonzeroStartsArgs& args, NonzeroSums& lds) {
  const uint32_t* counts = args.counts;
  uint32_t* starts = args.starts;
  int64_t* result = args.all;
  uint32_t carry = 0;
  NO_UNROLL for (uint32_t first = 0; first < args.parts; first += kNonzeroThreads) {
    const uint32_t i = first + static_cast<uint32_t>(thread_x());
    const uint32_t own = i < args.parts ? counts[i] : 0;
    uint32_t all = 0;
    const uint32_t through = sum_up_to(own, lds, all);
    if (i < args.parts) starts[i] = carry + through - own;
    carry += all;
  }
  if (thread_x() == 0) result[0] = carry;
}

template <class T>
DEVICE void nonzero_places(const NonzeroPlacesArgs& args, NonzeroSums& lds) {
  const T* x = args.x;
  const uint32_t* starts = args.starts;
  int64_t* y = args.y;
  const auto part = static_cast<uint32_t>(block_x());
  uint32_t at = starts[part];
  NO_UNROLL for (int tile = 0; tile < kNonzeroTiles; ++tile) {
    const uint32_t first =
        part * kNonzeroPart + static_cast<uint32_t>(tile * kNonzeroTile + thread_x() * kNonzeroElements);
    uint32_t found = 0, own = 0, all = 0;
    UNROLL for (uint32_t j = 0; j < kNonzeroElements; ++j) {
      if (!is_set(x, first + j, args.total, args.mask)) continue;
      found |= 1u << j;
      ++own;
    }
    uint32_t to = at + sum_up_to(own, lds, all) - own;
    at += all;
    NO_UNROLL for (uint32_t j = 0; j < kNonzeroElements; ++j) {
      if ((found >> j & 1) == 0) continue;
      uint32_t rest = first + j;
      // Numbered by constants, sizes stay in registers.
      UNROLL for (int axis = 0; axis < kNonzeroMostAxes; ++axis) {
        if (axis >= args.axes) continue;
        const uint32_t outer = divide(rest, args.sizes[axis]);
        y[static_cast<size_t>(args.axes - 1 - axis) * args.all + to] =
            static_cast<int64_t>(rest - outer * args.sizes[axis].d);
        rest = outer;
      }
      ++to;
    }
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(nonzero_starts, kNonzeroThreads, NonzeroStartsArgs, counts, starts, all) {
  SHARED(NonzeroSums, lds);
  sum_parts(args, lds);
}

#define NONZERO_KERNELS(T, suffix)                                                    \
  KERNEL(nonzero_count_##suffix, kNonzeroThreads, NonzeroCountArgs, x, counts) {      \
    SHARED(NonzeroSums, lds);                                                         \
    nonzero_count<T>(args, lds);                                                      \
  }                                                                                   \
  KERNEL(nonzero_places_##suffix, kNonzeroThreads, NonzeroPlacesArgs, x, starts, y) { \
    SHARED(NonzeroSums, lds);                                                         \
    nonzero_places<T>(args, lds);                                                     \
  }

NONZERO_KERNELS(uint8_t, b8)
NONZERO_KERNELS(uint16_t, b16)
NONZERO_KERNELS(uint32_t, b32)
NONZERO_KERNELS(uint64_t, b64)
