#include "operators/normalization/layer_norm_2d/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
LayerNorm2dProblem LayerNorm2dOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  throw_if(x.rank() < 2, "X must have rank 2 or more, got ", x);
  require_shape("gamma", inputs[1], {x[1]});
  require_shape("beta", inputs[2], {x[1]});
  return {x[0], x[1], x.elements(2), epsilon_};
}

namespace {

template <class T>
using LayerNorm2dKernel =
    CpuKernelOf<LayerNorm2dOp, T, 3, cpu::layer_norm_2d<T>, cpu::layer_norm_2d_workspace<T>>;

}  // namespace

void add_layer_norm_2d(Kernels& kernels) {
  kernels.add_cpu<LayerNorm2dOp, LayerNorm2dKernel>(Reuse::kInplace);
  kernels.add_gpu<LayerNorm2dOp, OwnGpuKernel<LayerNorm2dOp, gpu::layer_norm_2d_plan>>(Where::kGpu,
                                                                                       Reuse::kInplace);
}

}  // namespace graphopt
