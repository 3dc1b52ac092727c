// Linear computed by cuBLASLt or hipBLASLt, for Linear and for pointwise convolutions.
#pragma once

#include "operators/kernel_bases.h"
#include "operators/matmul/linear/problem.h"

namespace graphopt {

// Inputs and output of one Linear node.
struct LinearRefs {
  Ref x, w, b, r, y;
};

// The functions `refuse` and `plan` of an Implementation (operators/implementations.h) that computes `p`.
const char* refuse_blas_lt(const Call& call, gpu::Device& device, const LinearProblem& p, bool half,
                           size_t& library_bytes);
void plan_blas_lt(const Call& call, Program& program, const LinearProblem& p, bool half,
                  const LinearRefs& layer, Ref workspace);

}  // namespace graphopt
