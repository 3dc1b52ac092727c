// How FusedGroupNorm[act] runs on a GPU: operators/group_norm/kernel.hip.
#pragma once

#include "device/launch.h"
#include "operators/group_norm/op.h"

namespace graphopt::gpu {

// Inputs X, gamma, beta; output Y. `aligned`: all pointers are multiples of 16. Throws std::invalid_argument
// when a group has 2^31 elements or more.
Plan group_norm_plan(const GroupNormProblem& p, bool half, bool aligned, const DeviceFacts& device);

}  // namespace graphopt::gpu
