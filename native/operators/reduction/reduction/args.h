// Arguments of reduce_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kReduceThreads = 256;

// A reduction: how elements are joined, a function of each element before that, and a function of the result
// after it.
enum class Join : int32_t { kSum, kMax, kMin, kProduct, kLogSumExp };
enum class Before : int32_t { kNothing, kAbsolute, kSquare };
enum class After : int32_t { kNothing, kRoot, kLog };

struct ReduceHow {
  Join join;
  Before before;
  After after;
  float scale;      // factor of the result, before `after`: 1 / R for a mean
  int64_t divisor;  // for integers; replaces `scale`
  int32_t is_unsigned;
  int32_t unused;
};

// x [rows, R]. A row has `row_items` = 1 << shift work-items: at most 32, or an entire work-group.
struct ReduceRowsArgs : Arguments<2, 72> {
  In x;
  Out y;
  ReduceHow how;
  uint32_t R, rows, row_items, shift;
  int32_t packs;  // rows of floats are read in packs
  int32_t unused;
};

// x [outer, block], y [outer, stride] with `total` elements. A work-item computes one element of y, which
// joins every stride-th element of a block of x.
struct ReduceColumnsArgs : Arguments<2, 72> {
  In x;
  Out y;
  ReduceHow how;
  uint64_t block;
  uint32_t total;
  Divisor stride;
};

}  // namespace graphopt::hip
