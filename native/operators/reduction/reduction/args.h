// Arguments of reduce_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kReduceThreads = 256;

// A reduction consists of a function of each element, a combiner of the results, and a function of the combined value.
enum class Combiner : int32_t { kSum, kMax, kMin, kProduct, kLogSumExp };
enum class ElementFunction : int32_t { kNothing, kAbsolute, kSquare };
enum class ResultFunction : int32_t { kNothing, kRoot, kLog };

struct ReduceFunctions {
  Combiner combiner;
  ElementFunction before;
  ResultFunction after;
  float scale;      // multiplies the combined value, before `after`: 1 / R for a mean
  int64_t divisor;  // for integers, instead of `scale`
  int32_t is_unsigned;
  int32_t unused;
};

// x [rows, R]. A row has `row_items` = 1 << shift work-items: at most 32, or an entire work-group.
struct ReduceRowsArgs : Arguments<2, 72> {
  In x;
  Out y;
  ReduceFunctions functions;
  uint32_t R, rows, row_items, shift;
  int32_t uses_packs;  // rows of floats are read in packs
  int32_t unused;
};

// x [outer, block], y [outer, stride] with `total` elements. A work-item computes one element of y by reducing every
// stride-th element of a block of x.
struct ReduceColumnsArgs : Arguments<2, 72> {
  In x;
  Out y;
  ReduceFunctions functions;
  uint64_t block;
  uint32_t total;
  Divisor stride;
};

}  // namespace graphopt::hip
