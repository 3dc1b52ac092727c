// Arguments of softmax_* and lp_norm_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

// The values of `function` in the arguments of softmax_* and lp_norm_*.
enum SoftmaxFunction : int32_t { kSoftmax, kLogSoftmax };
enum LpNormFunction : int32_t { kSumOfAbsolutes, kRootOfSquares };

// A work-item keeps up to kSoftmaxKept elements of a row or column in registers.
constexpr int kSoftmaxKept = 8;

struct SoftmaxArgs : Arguments<2, 32> {
  In x;
  Out y;
  uint32_t D;
  int32_t function;
  int32_t threads;
};

// x and y [outer, D, inner]. A work-group processes kSoftmaxColumns adjacent columns, or pairs of columns;
// kSoftmaxParts work-items share a column or pair.
constexpr int kSoftmaxColumns = 32, kSoftmaxParts = 8;

struct SoftmaxColumnsArgs : Arguments<2, 40> {
  In x;
  Out y;
  Divisor groups;  // work-groups for each index of `outer`
  uint32_t D, inner;
  int32_t function;
};

}  // namespace graphopt::hip
