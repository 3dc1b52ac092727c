// CPU kernel of ScaleShift.
#pragma once

#include "cpu/parallel.h"
#include "cpu/workspace.h"
#include "ops/scale_shift.h"

namespace graphopt::cpu {

// T is float or graphopt::half. scale and shift are [C]. y may be x or residual.
template <class T>
void scale_shift(const ScaleShiftProblem& p, const T* x, const T* scale, const T* shift, const T* residual,
                 T* y, Parallel& parallel, Workspace& workspace);

}  // namespace graphopt::cpu
