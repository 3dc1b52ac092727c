// CPU kernel of FusedGroupNorm.
#pragma once

#include "device/cpu/parallel.h"
#include "device/cpu/workspace.h"
#include "operators/group_norm/op.h"

namespace graphopt::cpu {

// T is float or graphopt::half. gamma and beta are [C]. y may be x.
template <class T>
void group_norm(const GroupNormProblem& p, const T* x, const T* gamma, const T* beta, T* y,
                Parallel& parallel, Workspace& workspace);

}  // namespace graphopt::cpu
