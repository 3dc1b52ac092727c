// Softmax and LogSoftmax on a GPU.
#pragma once

#include "device/launch.h"

namespace graphopt::gpu {

// x and y [rows, D]; `log`: LogSoftmax. Throws std::invalid_argument.
Plan softmax_plan(int64_t rows, int64_t D, bool log, bool half, const DeviceFacts& device);

}  // namespace graphopt::gpu
