// Cast on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

// Input x, output y. `aligned`: both pointers are multiples of 16.
Plan cast_plan(int64_t total, ElementType from, ElementType to, bool aligned);

}  // namespace graphopt::gpu
