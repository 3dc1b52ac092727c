// What reduce_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kReduceThreads = 256;

enum class Reduction : int32_t { kSum, kMax, kMin, kMean };

// x [rows, R], a work-group for each row.
struct ReduceRowsArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  uint32_t R;
  Reduction how;  // kSum for a mean
  float scale;    // of the result: 1 / R for a mean
};
static_assert(is_args<ReduceRowsArgs>(32), "one layout for all compilers");

// x [outer, R, inner], a work-item for each of the `total` elements of y.
struct ReduceColumnsArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  uint32_t total, R;
  Divisor inner;
  Reduction how;
  float scale;
};
static_assert(is_args<ReduceColumnsArgs>(48), "one layout for all compilers");

}  // namespace graphopt::hip
