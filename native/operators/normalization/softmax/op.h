// Softmax, LogSoftmax and LpNormalization on a GPU.
#pragma once

#include "device/launch.h"

namespace graphopt::gpu {

// The function that is computed over an axis.
enum class AxisFunction : int32_t { kSoftmax, kLogSoftmax, kLp1, kLp2 };

// x and y [outer, D, inner], over D. `aligned`: both pointers are multiples of 16. Throws std::invalid_argument if D or
// inner is 2^31 or more.
Plan softmax_plan(int64_t outer, int64_t D, int64_t inner, AxisFunction function, bool half, bool aligned,
                  const DeviceFacts& device);

}  // namespace graphopt::gpu
