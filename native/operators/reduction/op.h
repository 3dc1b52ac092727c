// Reductions on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/reduction/args.h"

namespace graphopt::gpu {

using hip::Reduction;

// x [outer, R, inner], y [outer, inner]. Throws std::invalid_argument; R must not be 0.
Plan reduce_plan(int64_t outer, int64_t R, int64_t inner, Reduction how, bool half);

}  // namespace graphopt::gpu
