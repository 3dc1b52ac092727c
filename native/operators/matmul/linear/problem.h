// The problem of Linear: Y = act(X W + b + R), with X and W optionally rounded to bfloat16.
#pragma once

#include <cstdint>

#include "operators/activation.h"

namespace graphopt {

struct LinearProblem {
  int64_t rows = 0;  // product of all dims of X except the last
  int64_t K = 0;     // last dim of X
  int64_t N = 0;     // last dim of Y
  bool has_residual = false;
  Activation act;
  bool bfloat16 = false;
  bool transposed = false;  // W is [N, K]
  bool strassen = true;     // the kernel may use Strassen's algorithm, which adds rows (strassen.h)
  // Several layers with the same X, without residual: the strides of their W, b and Y in elements. w_step is 0 if the
  // layers' weights or biases do not follow each other in memory.
  int64_t layers = 1, w_step = 0, b_step = 0, y_step = 0;
};

}  // namespace graphopt
