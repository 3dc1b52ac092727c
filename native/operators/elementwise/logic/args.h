// Arguments of logic_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kLogicThreads = 256;  // each work-item reads 16 bytes of each input

enum class LogicOp : int32_t {
  // two inputs
  kEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kAnd,
  kOr,
  kXor,
  // one input
  kNot,
  kIsNaN,
  kIsInf,
  kIsPositiveInf,
  kIsNegativeInf,
};

// Computes element i of y from the corresponding elements of a and b.
struct LogicArgs : Arguments<3, 136> {
  In a, b;  // b may be null
  Out y;
  uint32_t total;
  Axes axes;
  Strides a_strides, b_strides;
  LogicOp op;
  // 1: the addresses of a and b are multiples of 16. Each of a and b is read in packs of 16 bytes, or is broadcast
  // along the innermost axis and constant within a pack.
  int32_t vectors;
  int32_t is_unsigned;  // for comparisons of integers
  int32_t unused;
};

}  // namespace graphopt::hip
