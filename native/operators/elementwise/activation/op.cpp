#include "operators/elementwise/activation/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {

std::vector<ActivationOp> ActivationOp::all() {
  using A = ActivationKind;
  std::vector<ActivationOp> ops;
  for (const A kind : {A::kHardSwish, A::kGelu, A::kGeluTanh, A::kMish}) {
    ActivationOp op;
    op.act_.kind = kind;
    ops.push_back(op);
  }
  return ops;
}

namespace {

template <class T>
using ActivationKernel = CpuKernelOf<ActivationOp, T, 1, cpu::activation<T>>;

}  // namespace

void add_activation(Kernels& kernels) {
  kernels.add_cpu<ActivationOp, ActivationKernel>(Reuse::kInplace);
  kernels.add_gpu<ActivationOp, BuiltInGpuKernel<ActivationOp, gpu::activation_plan>>(Where::kGpu,
                                                                                      Reuse::kInplace);
  kernels.treat_axes_alike<ActivationOp>();
}

}  // namespace graphopt
