// Arguments of nonzero_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kNonzeroThreads = 256;
constexpr int kNonzeroElements = 16;                              // adjacent elements per work-item
constexpr int kNonzeroPart = kNonzeroThreads * kNonzeroElements;  // elements of x per work-group
constexpr int kNonzeroCounts = 8;                                 // adjacent parts that a work-item sums
constexpr int kNonzeroMaxAxes = 8;

// An element is zero if it has no bit of `mask` set. The mask excludes the sign of floats, so -0 is zero and
// NaN is not.
struct NonzeroCountArgs : Arguments<2, 32> {
  In x;
  Out counts;  // uint32_t for each part
  uint64_t mask;
  uint32_t total;
  int32_t unused;
};

// starts[i] = counts[0] + ... + counts[i - 1], computed by one work-group.
struct NonzeroStartsArgs : Arguments<3, 32> {
  In counts;
  Out starts;  // uint32_t
  Out all;     // int64_t, the sum of all counts
  uint32_t parts;
  int32_t unused;
};

struct NonzeroIndicesArgs : Arguments<3, 144> {
  In x, starts;
  Out y;  // int64_t [axes, all]
  uint64_t mask;
  uint32_t total, all;
  int32_t axes;
  Divisor sizes[kNonzeroMaxAxes];  // sizes of the axes of x, from the last axis
  int32_t unused;
};

}  // namespace graphopt::hip
