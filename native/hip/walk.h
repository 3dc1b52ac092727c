// Tensors of up to five axes with a stride for each. Filled by gpu/walk.h.
#pragma once

#include "hip/platform.h"

namespace graphopt::hip {

// Sizes of the axes from the innermost on; the outermost needs none.
struct Axes {
  Divisor inner[4];
};
// In elements, from the innermost axis on; 0 where a tensor is broadcast.
struct Strides {
  int32_t s[5];
};

// Of element i in the order of the axes. Negative strides work, since uint32_t wraps around.
DEVICE uint32_t offset_of(uint32_t i, const Axes& axes, const Strides& strides) {
  uint32_t offset = 0;
  UNROLL for (int k = 0; k < 4; ++k) {
    const uint32_t next = divide(i, axes.inner[k]);
    offset += (i - next * axes.inner[k].d) * static_cast<uint32_t>(strides.s[k]);
    i = next;
  }
  return offset + i * static_cast<uint32_t>(strides.s[4]);
}

}  // namespace graphopt::hip
