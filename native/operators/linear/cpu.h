// CPU kernel of Linear. T is float or graphopt::half.
#pragma once

#include <cstddef>

#include "device/cpu/isa.h"
#include "device/cpu/parallel.h"
#include "operators/linear/problem.h"

namespace graphopt::cpu {

// W in the layout that the kernel wants, which depends on p.K, p.N and p.bfloat16 alone: its bytes, and how
// these are written, at a cache line, from w [K, N].
GRAPHOPT_PRODUCT_KERNEL(size_t, linear_weights, (const LinearProblem& p), (p))
GRAPHOPT_PRODUCT_KERNEL(void, linear_prepare, (const LinearProblem& p, const T* w, void* weights),
                        (p, w, weights))

GRAPHOPT_PRODUCT_KERNEL(size_t, linear_workspace, (const LinearProblem& p), (p))

// y [rows, N] = act(x w + b + r), summed in float32; where p.bfloat16 both factors are rounded to bfloat16
// before. r is null unless p.has_residual. The result does not depend on the number of lanes.
GRAPHOPT_PRODUCT_KERNEL(void, linear,
                        (const LinearProblem& p, const T* x, const void* weights, const T* b, const T* r,
                         T* y, Parallel& parallel, void* workspace),
                        (p, x, weights, b, r, y, parallel, workspace))

}  // namespace graphopt::cpu
