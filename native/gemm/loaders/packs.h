// Copies packs of 16 bytes from memory to LDS, one part of a step at a time.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// The copies of a step are started while an earlier step is multiplied, in parts: one part with each multiplication of
// 16 indices k. kAllParts starts all copies at once.
constexpr int kAllParts = -1;
// Returns whether the copy of a pack is started in this part. `groups`: number of parts that start copies, less than
// `parts` if fewer and larger groups of copies are faster.
DEVICE bool in_part(int pack, int packs, int part, int parts, int groups) {
  return part == kAllParts || pack * groups / packs * (parts / groups) == part;
}
DEVICE bool is_last_part(int part, int parts) { return part == kAllParts || part == parts - 1; }

// Like copy_to_lds, but through the cache of the compute unit, for data that other work-items copy soon.
template <class To, class T>
DEVICE void copy_to_lds_cached(To* to, const T* from, bool inside) {
#if defined(__CUDACC__)
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
#else
  copy_to_lds(to, from, inside);
#endif
}

// Copies the packs of a work-item to LDS. kAsyncCopies: by copy_to_lds, without registers if the target supports
// it. kCached: by copy_to_lds_cached.
template <bool kAsyncCopies, int kPacks, bool kCached = false>
struct PacksToLds {
  Bits128 staged[kAsyncCopies ? 1 : kPacks];

  DEVICE void begin(int i, half_t* to, const half_t* from, bool inside) {
    if constexpr (kAsyncCopies && kCached) {
      copy_to_lds_cached(to, from, inside);
    } else if constexpr (kAsyncCopies) {
      copy_to_lds(to, from, inside);
    } else {
      Bits128 bits = {};
      if (inside) bits = *reinterpret_cast<const Bits128*>(from);
      staged[i] = bits;
    }
  }
  DEVICE void finish(int i, half_t* to) const {
    if constexpr (!kAsyncCopies) *reinterpret_cast<Bits128*>(to) = staged[i];
  }
};

}  // namespace graphopt::hip
