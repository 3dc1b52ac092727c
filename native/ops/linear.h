// Linear[Add][act]: Y = act(X W + b + R), a fully connected layer over the last axis.
#pragma once

#include <cstdint>

#include "ops/activation.h"

namespace graphopt {

struct LinearProblem {
  int64_t rows = 0;  // product of all dims of X but the last
  int64_t K = 0;     // last dim of X
  int64_t N = 0;     // last dim of Y
  bool has_residual = false;
  Activation act;
};

}  // namespace graphopt
