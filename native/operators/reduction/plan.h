// How Softmax and the reductions run on a GPU: operators/softmax/kernel.hip, operators/reduction/kernel.hip.
#pragma once

#include "device/launch.h"
#include "operators/reduction/args.h"

namespace graphopt::gpu {

// x and y [rows, D]; `log`: LogSoftmax. Throws std::invalid_argument.
Plan softmax_plan(int64_t rows, int64_t D, bool log, bool half, const DeviceFacts& device);

using hip::Reduction;

// x [outer, R, inner], y [outer, inner]. Throws std::invalid_argument; R must not be 0.
Plan reduce_plan(int64_t outer, int64_t R, int64_t inner, Reduction how, bool half);

}  // namespace graphopt::gpu
