// How FusedLayerNorm[Add[Sum]] and FusedRmsNorm[Add[Sum]] run on a GPU: operators/row_norm/kernel.hip.
#pragma once

#include "device/launch.h"
#include "operators/row_norm/op.h"

namespace graphopt::gpu {

// Inputs X, R if any, gamma, beta unless p.rms; outputs Y, S if any. `aligned`: all pointers are multiples
// of 16. Throws std::invalid_argument when D or the number of rows is 2^31 or more.
Plan row_norm_plan(const RowNormProblem& p, bool half, bool aligned, const DeviceFacts& device);

}  // namespace graphopt::gpu
