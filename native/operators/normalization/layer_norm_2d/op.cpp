#include "operators/normalization/layer_norm_2d/op.h"

#include "operators/kernel_bases.h"
#include "operators/normalization/row_norm/op.h"

namespace graphopt {
LayerNorm2dProblem LayerNorm2dOp::problem(const Shapes& inputs) const {
  return problem(inputs[0], inputs[1], inputs[2]);
}

LayerNorm2dProblem LayerNorm2dOp::problem(const Shape& x, const Shape& gamma, const Shape& beta) const {
  throw_if(x.rank() < 2, "X must have rank 2 or more, got ", x);
  require_shape("gamma", gamma, {x[1]});
  require_shape("beta", beta, {x[1]});
  return {x[0], x[1], x.elements(2), epsilon_};
}

namespace {

template <class T>
using LayerNorm2dKernel =
    CpuKernelOf<LayerNorm2dOp, T, 3, cpu::layer_norm_2d<T>, cpu::layer_norm_2d_workspace<T>>;

// In channels last, the channels of a pixel are a row.
class LayerNorm2dChannelsLastGpu final : public GpuKernelOf<LayerNorm2dOp> {
 public:
  LayerNorm2dChannelsLastGpu(const LayerNorm2dOp& op, const Node& node, gpu::Device& device, bool)
      : GpuKernelOf(op, node, device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Shapes inputs(call.inputs);
    const LayerNorm2dProblem p = op_.problem(to_channels_first(inputs[0]), inputs[1], inputs[2]);
    RowNormProblem rows;
    rows.rows = p.N * p.pixels;
    rows.D = p.C;
    rows.epsilon = p.epsilon;
    const Ref y = set_output(call, 0, inputs[0]);
    program.launch(gpu::row_norm_plan(rows, half_, call.aligned(), program.device().facts()),
                   {Ref::input(0), Ref::input(1), Ref::input(2)}, {y});
  }
};

}  // namespace

void add_layer_norm_2d(Kernels& kernels) {
  kernels.add_cpu<LayerNorm2dOp, LayerNorm2dKernel>(Reuse::kInplace);
  kernels.add_gpu<LayerNorm2dOp, BuiltInGpuKernel<LayerNorm2dOp, gpu::layer_norm_2d_plan>>(Where::kGpu,
                                                                                           Reuse::kInplace);
  kernels.have_channels_last<LayerNorm2dOp, LayerNorm2dChannelsLastGpu>(
      [](const Node&) { return Layout::kFollows; });
}

}  // namespace graphopt
