// CPU kernel of ScaleShift.
#pragma once

#include "device/cpu/parallel.h"
#include "device/cpu/workspace.h"
#include "operators/scale_shift/op.h"

namespace graphopt::cpu {

// T is float or graphopt::half. scale and shift are [C]. y may be x or residual.
template <class T>
void scale_shift(const ScaleShiftProblem& p, const T* x, const T* scale, const T* shift, const T* residual,
                 T* y, Parallel& parallel, Workspace& workspace);

}  // namespace graphopt::cpu
