#include "operators/normalization/axis_softmax/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
AxisSoftmaxProblem AxisSoftmaxOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  const size_t axis = axis_of(axis_, x.rank());
  return {x.elements(0, axis), x[axis], x.elements(axis + 1)};
}

namespace {

template <class T>
using AxisSoftmaxCpu = CpuKernelOf<AxisSoftmaxOp, T, 1, cpu::axis_softmax<T>>;

}  // namespace

void add_axis_softmax(Kernels& kernels) { kernels.add_cpu<AxisSoftmaxOp, AxisSoftmaxCpu>(Reuse::kInplace); }

}  // namespace graphopt
