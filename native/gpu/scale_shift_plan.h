// How ScaleShift[Add][act] runs on a GPU: hip/scale_shift.hip.
#pragma once

#include "gpu/launch.h"
#include "ops/scale_shift.h"

namespace graphopt::gpu {

// Inputs X, scale, shift, R if any; output Y. `half`: float16, else float. `aligned`: all pointers are
// multiples of 16. Throws std::invalid_argument when a plane has 2^31 elements or more.
Plan scale_shift_plan(const ScaleShiftProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
