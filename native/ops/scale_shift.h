// ScaleShift[Add][act]: Y = act(X * scale + shift + R), scale and shift per channel (axis 1).
#pragma once

#include <cstdint>

#include "ops/activation.h"

namespace graphopt {

struct ScaleShiftProblem {
  int64_t N = 0;      // dim 0
  int64_t C = 0;      // dim 1
  int64_t inner = 0;  // product of the other dims (1 for rank 2)
  bool has_residual = false;
  Activation act;
};

}  // namespace graphopt
