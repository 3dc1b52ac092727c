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
class AxisSoftmaxCpu final : public CpuKernel<AxisSoftmaxOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    cpu::axis_softmax(problem(call), data<T>(call, 0), call.outputs[0].as<T>(), *call.parallel);
    return true;
  }

 private:
  size_t workspace(const AxisSoftmaxProblem&, size_t) const override { return 0; }
};

}  // namespace

void add_axis_softmax(Kernels& kernels) { kernels.add_cpu<AxisSoftmaxOp, AxisSoftmaxCpu>(Reuse::kInplace); }

}  // namespace graphopt
