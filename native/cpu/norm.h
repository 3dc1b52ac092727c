// CPU kernels of FusedGroupNorm, FusedLayerNorm and FusedRmsNorm.
#pragma once

#include "cpu/parallel.h"
#include "cpu/workspace.h"
#include "ops/norm.h"

namespace graphopt::cpu {

// T is float or graphopt::half. gamma and beta are [C]. y may be x.
template <class T>
void group_norm(const GroupNormProblem& p, const T* x, const T* gamma, const T* beta, T* y,
                Parallel& parallel, Workspace& workspace);

// T is float or graphopt::half. residual is null unless p.has_residual, beta unless p is a LayerNorm, sum
// unless p.writes_sum. y may be x.
template <class T>
void row_norm(const RowNormProblem& p, const T* x, const T* residual, const T* gamma, const T* beta, T* y,
              T* sum, Parallel& parallel, Workspace& workspace);

}  // namespace graphopt::cpu
