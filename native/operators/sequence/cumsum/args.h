// Arguments of cumsum_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kCumSumThreads = 256;
constexpr int kCumSumElements = 4;  // adjacent elements per work-item
constexpr int kCumSumTile = kCumSumThreads * kCumSumElements;

// Rows of `size` adjacent elements are divided into parts of complete tiles. One work-group processes each part.
struct CumSumArgs : Arguments<4, 64> {
  In x;
  In starts;   // for each part, the sum of the earlier parts of its row; null: zeros
  Out y;       // may be null
  Out totals;  // the sum of each part; may be null
  uint32_t size;
  uint32_t part;  // elements
  Divisor parts;
  int32_t reverse, exclusive;
};

// Sums along the middle axis of [outer, size, inner]. A line has one outer and one inner index; each
// work-item computes a line.
struct CumSumLinesArgs : Arguments<2, 48> {
  In x;
  Out y;
  uint32_t lines;
  Divisor inner;
  uint32_t size;
  int32_t reverse, exclusive;
};

}  // namespace graphopt::hip
