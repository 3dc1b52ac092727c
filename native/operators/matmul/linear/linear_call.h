// Linear by cuBLASLt or hipBLASLt, for Linear and for convolutions of single pixels.
#pragma once

#include "operators/kernel_bases.h"
#include "operators/matmul/linear/problem.h"

namespace graphopt {

// Inputs and output of a layer.
struct LinearRefs {
  Ref x, w, b, r, y;
};

// Parts of an implementation that multiplies `p` as a part of `work`, or all of it.
const char* refuse_blas_lt(const Call& call, gpu::Device& device, const LinearProblem& p, bool half,
                           size_t& library_bytes);
void plan_blas_lt(const Call& call, Program& program, const LinearProblem& p, bool half,
                  const LinearRefs& layer, Ref workspace);

}  // namespace graphopt
