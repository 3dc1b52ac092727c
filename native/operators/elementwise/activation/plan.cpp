#include "operators/elementwise/activation/op.h"
#include "operators/elementwise/elementwise/op.h"

namespace graphopt::gpu {

Plan activation_plan(const ActivationProblem& p, bool half, bool aligned) {
  ElementwiseProblem problem;
  problem.op = hip::elementwise_op(p.act.kind);
  problem.a = problem.y = p.shape;
  return elementwise_plan(problem, half, aligned);
}

}  // namespace graphopt::gpu
