// Arguments of gather_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kGatherThreads = 256;

// x [outer, size, inner], y [outer, indices, inner].
struct GatherArgs : Arguments<3, 64> {
  In x, index;  // index: int64_t, or int32_t if `narrow`; negative indices count from the end
  Out y;
  uint32_t total;
  Divisor inner, indices;
  uint32_t size;
  int32_t narrow;
};

}  // namespace graphopt::hip
