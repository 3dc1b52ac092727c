// Walks over tensors with a stride for each axis. Filled by blocks/gpu/walk_plan.h.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// The offset of element i in the order of the axes. Negative strides work, since uint32_t wraps around.
DEVICE uint32_t offset_of(uint32_t i, const Axes& axes, const Strides& strides) {
  uint32_t offset = 0;
  UNROLL for (int k = 0; k < kMostAxes - 1; ++k) {
    const uint32_t next = divide(i, axes.inner[k]);
    offset += (i - next * axes.inner[k].d) * static_cast<uint32_t>(strides.s[k]);
    i = next;
  }
  return offset + i * static_cast<uint32_t>(strides.s[kMostAxes - 1]);
}

}  // namespace graphopt::hip
