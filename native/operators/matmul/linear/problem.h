// What Linear computes: Y = act(X W + b + R), of X and W rounded to bfloat16 where asked.
#pragma once

#include <cstdint>

#include "operators/activation.h"

namespace graphopt {

struct LinearProblem {
  int64_t rows = 0;  // product of all dims of X but the last
  int64_t K = 0;     // last dim of X
  int64_t N = 0;     // last dim of Y
  bool has_residual = false;
  Activation act;
  bool bfloat16 = false;
  bool transposed = false;  // W is [N, K]
  bool strassen = true;     // rows may be added to each other, where the kernel gains by that (strassen.h)
  // Several layers of the same X, without a residual: how many elements apart their W, b and Y are.
  int64_t layers = 1, w_step = 0, b_step = 0, y_step = 0;
};

}  // namespace graphopt
