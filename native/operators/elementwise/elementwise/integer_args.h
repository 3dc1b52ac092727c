// Arguments of integer_elementwise_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kIntegerElementwiseThreads = 256;  // each work-item processes a pack of 16 bytes

enum class IntegerOp : int32_t {
  // one input
  kNeg,
  kAbs,
  kNot,
  // two inputs
  kAdd,
  kSub,
  kMul,
  kDiv,  // towards 0
  kMax,
  kMin,
  kMod,   // with the sign of the divisor
  kFmod,  // with the sign of the dividend
  kAnd,
  kOr,
  kXor,
  kShiftLeft,
  kShiftRight,
  // a mask and two inputs
  kWhere,
  // one input, limited to low and high
  kClip,
};

// Computes element i of y from the corresponding elements of a, b and mask.
struct IntegerElementwiseArgs : Arguments<4, 176> {
  In mask, a, b;  // mask and b may be null
  Out y;
  uint32_t total;
  Axes axes;
  Strides mask_strides, a_strides, b_strides;
  int64_t low, high;
  IntegerOp op;
  int32_t is_signed;
  // 1: all pointers, the innermost size and the strides of the outer axes are multiples of 16 bytes. The stride of the
  // innermost axis is 1, or 0 for a broadcast input. These conditions do not apply to the mask.
  int32_t vectors;
};

}  // namespace graphopt::hip
