// What gather_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kGatherThreads = 256;

// x [outer, size, inner], y [outer, indices, inner].
struct GatherArgs {
  static constexpr int kSlots = 3;
  In x, index;  // int64_t, or int32_t when `narrow`; negative ones count from the end
  Out y;
  uint32_t total;
  Divisor inner, indices;
  uint32_t size;
  int32_t narrow;
};
static_assert(is_args<GatherArgs>(64), "one layout for all compilers");

}  // namespace graphopt::hip
