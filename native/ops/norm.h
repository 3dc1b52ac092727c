// FusedGroupNorm[act], FusedLayerNorm[Add[Sum]], FusedRmsNorm[Add[Sum]].
#pragma once

#include <cstdint>

#include "ops/activation.h"

namespace graphopt {

struct GroupNormProblem {
  int64_t N = 0, C = 0, inner = 0;  // inner: product of the spatial dims
  int64_t groups = 1;
  float epsilon = 1e-5f;
  Activation act;
};

// LayerNorm subtracts the mean and adds beta; RMSNorm does neither (beta is null).
struct RowNormProblem {
  int64_t rows = 0, D = 0;
  float epsilon = 1e-5f;
  bool rms = false;
  bool has_residual = false;
  bool writes_sum = false;  // S = X + R is a second output
};

}  // namespace graphopt
