// Functions of one number on a GPU. Those that end other operators, and their kin, are in elementwise/.
#pragma once

#include "device/launch.h"
#include "operators/elementwise/unary/args.h"

namespace graphopt::gpu {

// Input x, output y, of `total` elements. `aligned`: both pointers are multiples of 16.
Plan unary_plan(hip::UnaryOp op, float alpha, int64_t total, bool half, bool aligned);

}  // namespace graphopt::gpu
