// Iteration over the elements of tensors that have one stride for each axis. blocks/gpu/walk_plan.h fills in
// the arguments.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// A position in a walk. A walk is a loop nest over all elements; its innermost loop runs over the innermost
// axis (index 0). Negative strides work because uint32_t wraps around.
struct WalkPosition {
  uint32_t at[kMaxAxes - 1];  // index along each axis except the outermost
  uint32_t offset;

  DEVICE WalkPosition(uint32_t i, const Axes& axes, const Strides& strides) : offset(0) {
    UNROLL for (int k = 0; k < kMaxAxes - 1; ++k) {
      const uint32_t next = divide(i, axes.inner[k]);
      at[k] = i - next * axes.inner[k].d;
      offset += at[k] * static_cast<uint32_t>(strides.s[k]);
      i = next;
    }
    offset += i * static_cast<uint32_t>(strides.s[kMaxAxes - 1]);
  }

  DEVICE void advance(const Axes& axes, const Strides& strides) {
    UNROLL for (int k = 0; k < kMaxAxes - 1; ++k) {
      offset += static_cast<uint32_t>(strides.s[k]);
      if (++at[k] < axes.inner[k].d) return;
      offset -= axes.inner[k].d * static_cast<uint32_t>(strides.s[k]);
      at[k] = 0;
    }
    offset += static_cast<uint32_t>(strides.s[kMaxAxes - 1]);
  }
};

DEVICE uint32_t offset_of(uint32_t i, const Axes& axes, const Strides& strides) {
  return WalkPosition(i, axes, strides).offset;
}

}  // namespace graphopt::hip
