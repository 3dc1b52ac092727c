#include "operators/normalization/layer_norm_2d/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {

LayerNorm2dProblem LayerNorm2dOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  if (x.rank() < 2) throw Error("X must have rank 2 or more, got " + x.text());
  require_shape("gamma", inputs[1], {x[1]});
  require_shape("beta", inputs[2], {x[1]});
  return {x[0], x[1], x.elements(2), epsilon_};
}

namespace {

template <class T>
using LayerNorm2dKernel =
    CpuKernelOfThree<LayerNorm2dOp, T, cpu::layer_norm_2d<T>, cpu::layer_norm_2d_workspace<T>>;

void plan_own(GpuWork<LayerNorm2dProblem>& work) {
  work.program.launch(gpu::layer_norm_2d_plan(work.p, work.half, work.call.aligned()), work.call);
}

constexpr Implementation<GpuWork<LayerNorm2dProblem>> kImplementations[] = {
    {"a kernel of our own", take_all<GpuWork<LayerNorm2dProblem>>, plan_own},
};

}  // namespace

void add_layer_norm_2d(Kernels& kernels) {
  kernels.add_cpu<LayerNorm2dOp, LayerNorm2dKernel>(Reuse::kInplace);
  kernels.add_gpu<LayerNorm2dOp, GpuKernel<LayerNorm2dOp, kImplementations>>(Where::kGpu, Reuse::kInplace);
}

}  // namespace graphopt
