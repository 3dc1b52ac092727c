// CPU kernel of Linear. T is float or graphopt::half.
#pragma once

#include "operators/matmul/linear/problem.h"
#include "operators/packed.h"

namespace graphopt::cpu {

// y [rows, N] = act(x w + b + r), summed in float32; where p.bfloat16 both factors are rounded to bfloat16
// before. What w [K, N] is packed to depends on p.K, p.N and p.bfloat16.
GRAPHOPT_PACKED_KERNELS(GRAPHOPT_PRODUCT_KERNEL, linear, LinearProblem, OnlyAlgorithm)

}  // namespace graphopt::cpu
