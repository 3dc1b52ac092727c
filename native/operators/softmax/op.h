// Softmax and LogSoftmax on a GPU.
#pragma once

#include "device/launch.h"

namespace graphopt::gpu {

// x and y [outer, D, inner], over D; `log`: LogSoftmax. Throws std::invalid_argument.
Plan softmax_plan(int64_t outer, int64_t D, int64_t inner, bool log, bool half, const DeviceFacts& device);

}  // namespace graphopt::gpu
