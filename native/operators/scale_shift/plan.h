// How ScaleShift[Add][act] runs on a GPU: operators/scale_shift/kernel.hip.
#pragma once

#include "device/launch.h"
#include "operators/scale_shift/op.h"

namespace graphopt::gpu {

// Inputs X, scale, shift, R if any; output Y. `half`: float16, else float. `aligned`: all pointers are
// multiples of 16. Throws std::invalid_argument when a plane has 2^31 elements or more.
Plan scale_shift_plan(const ScaleShiftProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
