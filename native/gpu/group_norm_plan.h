// How FusedGroupNorm[act] runs on a GPU: hip/group_norm.hip.
#pragma once

#include "gpu/launch.h"
#include "ops/norm.h"

namespace graphopt::gpu {

// Inputs X, gamma, beta; output Y. `aligned`: all pointers are multiples of 16. Throws std::invalid_argument
// when a group has 2^31 elements or more.
Plan group_norm_plan(const GroupNormProblem& p, bool half, bool aligned, const DeviceFacts& device);

}  // namespace graphopt::gpu
