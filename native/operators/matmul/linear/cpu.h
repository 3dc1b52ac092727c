// CPU kernel of Linear. T is float or graphopt::half.
#pragma once

#include "operators/matmul/linear/problem.h"
#include "operators/packed.h"

namespace graphopt::cpu {

// y [rows, N] = act(x w + b + r), summed in float32. With p.bfloat16, x and w are rounded to bfloat16 first. The
// packed form of w [K, N] depends on p.K, p.N and p.bfloat16.
GRAPHOPT_PACKED_KERNELS(GRAPHOPT_BFLOAT16_KERNEL, linear, LinearProblem, OnlyAlgorithm)

}  // namespace graphopt::cpu
