// CPU kernel of FusedLayerNorm and FusedRmsNorm.
#pragma once

#include "device/cpu/parallel.h"
#include "device/cpu/workspace.h"
#include "operators/row_norm/op.h"

namespace graphopt::cpu {

// T is float or graphopt::half. residual is null unless p.has_residual, beta unless p is a LayerNorm, sum
// unless p.writes_sum. y may be x.
template <class T>
void row_norm(const RowNormProblem& p, const T* x, const T* residual, const T* gamma, const T* beta, T* y,
              T* sum, Parallel& parallel, Workspace& workspace);

}  // namespace graphopt::cpu
