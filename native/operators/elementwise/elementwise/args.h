// Arguments of elementwise_*.
#pragma once

#include "device/args.h"
#include "operators/elementwise/elementwise/operations.h"

namespace graphopt::hip {

constexpr int kElementwiseThreads = 256;  // each work-item processes a pack of 16 bytes

// Computes element i of y from the corresponding elements of a, b and mask.
struct ElementwiseArgs : Arguments<4, 160> {
  In mask, a, b;  // mask and b may be null
  Out y;
  uint32_t total;
  Axes axes;
  Strides mask_strides, a_strides, b_strides;
  ElementwiseOp op;
  float p, q;  // Activation::a and b; for kEluOp, p is alpha
  // 1: all pointers, the innermost size and the strides of the outer axes are multiples of 16 bytes. The stride of the
  // innermost axis is 1, or 0 for a broadcast input. These conditions do not apply to the mask.
  int32_t vectors;
};

}  // namespace graphopt::hip
