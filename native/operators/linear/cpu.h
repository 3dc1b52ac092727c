// CPU kernel of Linear.
#pragma once

#include <memory>

#include "device/cpu/isa.h"
#include "device/cpu/parallel.h"
#include "device/cpu/workspace.h"
#include "operators/linear/problem.h"

namespace graphopt::cpu {

// W in the layout that the kernel wants, made once and immutable after.
class LinearWeights {
 public:
  virtual ~LinearWeights() = default;
};

// T is float or graphopt::half; w is [K, N]. Depends on p.K, p.N and p.bfloat16 alone.
GRAPHOPT_PRODUCT_KERNEL(std::shared_ptr<const LinearWeights>, linear_prepare,
                        (const LinearProblem& p, const T* w), (p, w))

// y [rows, N] = act(x w + b + r), summed in float32; where p.bfloat16 both factors are rounded to bfloat16
// before. r is null unless p.has_residual. The result does not depend on the number of lanes.
GRAPHOPT_PRODUCT_KERNEL(void, linear,
                        (const LinearProblem& p, const T* x, const LinearWeights& w, const T* b, const T* r,
                         T* y, Parallel& parallel, Workspace& workspace),
                        (p, x, w, b, r, y, parallel, workspace))

}  // namespace graphopt::cpu
