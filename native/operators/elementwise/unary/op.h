// Functions of one element on a GPU. Activations and similar functions are in elementwise/elementwise/.
#pragma once

#include "device/launch.h"
#include "operators/elementwise/unary/args.h"

namespace graphopt::gpu {

// Input x, output y, of `total` elements. `aligned`: both pointers are multiples of 16.
Plan unary_plan(hip::UnaryOp op, float alpha, int64_t total, bool half, bool aligned);

}  // namespace graphopt::gpu
