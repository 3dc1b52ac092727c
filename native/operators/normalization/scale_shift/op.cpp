#include "operators/normalization/scale_shift/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
std::vector<ScaleShiftOp> ScaleShiftOp::all() {
  return with_tails<ScaleShiftOp>({false, true}, all_activations());
}

ScaleShiftProblem ScaleShiftOp::problem(const Shapes& inputs) const {
  require_residual(inputs, "X", inputs[0]);
  return problem(inputs[0], inputs[1], inputs[2]);
}

ScaleShiftProblem ScaleShiftOp::problem(const Shape& x, const Shape& scale, const Shape& shift) const {
  throw_if(x.rank() < 2, "X must have rank 2 or more, got ", x);
  Shape per_channel(x.rank() - 1);
  for (size_t i = 0; i < per_channel.rank(); ++i) per_channel[i] = i == 0 ? x[1] : 1;
  require_shape("scale", scale, per_channel);
  require_shape("shift", shift, per_channel);
  ScaleShiftProblem p;
  p.N = x[0];
  p.C = x[1];
  p.inner = x.elements(2);
  p.has_residual = tail_.has_residual;
  p.act = tail_.act;
  return p;
}

namespace {

template <class T>
using ScaleShiftKernel = CpuKernelOf<ScaleShiftOp, T, 4, cpu::scale_shift<T>, cpu::scale_shift_workspace<T>>;

// In channels last each pixel is an image of one pixel.
void pixels_to_images(ScaleShiftProblem& p) {
  p.N *= p.inner;
  p.inner = 1;
}

class ScaleShiftChannelsLastGpu final : public GpuKernelOf<ScaleShiftOp> {
 public:
  ScaleShiftChannelsLastGpu(const ScaleShiftOp& op, const Node& node, gpu::Device& device, bool)
      : GpuKernelOf(op, node, device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Shapes inputs(call.inputs);
    ScaleShiftProblem p = op_.problem(to_channels_first(inputs[0]), inputs[1], inputs[2]);
    if (p.has_residual) require_same_shape("R", inputs[3], "X", inputs[0]);
    pixels_to_images(p);
    const Ref y = set_output(call, 0, inputs[0]);
    program.launch(gpu::scale_shift_plan(p, half_, call.aligned()),
                   {Ref::input(0), Ref::input(1), Ref::input(2), p.has_residual ? Ref::input(3) : Ref()},
                   {y});
  }
};

// Inputs X, scale, B, mean, variance, in inference mode.
Planner plan_batch_normalization(const Node& node, bool channels_last) {
  const float epsilon = node.get_float("epsilon", 1e-5f);
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    ScaleShiftProblem p;
    const Shape shape = channels_last ? to_channels_first(x.shape) : x.shape;
    const size_t rank = shape.rank();
    throw_if(rank == 0, "X must have an axis");
    p.N = shape[0];
    p.C = rank == 1 ? 1 : shape[1];
    p.inner = rank == 1 ? 1 : shape.elements(2);
    if (channels_last) pixels_to_images(p);
    for (size_t i = 1; i < 5; ++i) {
      throw_if(call.input(i).shape != Shape{p.C},
               "scale, B, mean and variance must have one element for each of ", p.C, " channels");
    }
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::batch_norm_plan(p, epsilon, is_half(x), is_half(call.input(1)), call.aligned()),
                   {Ref::input(0), Ref::input(1), Ref::input(2), Ref::input(3), Ref::input(4)}, {y});
  };
}

std::string refuse_batch_norm(const Node& node) {
  if (node.get_bool("training_mode")) return "training_mode is set";
  if (node.version < 9 && !node.get_bool("spatial", true)) return "spatial is 0";
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i].present) return "outputs other than Y are used";
  }
  const ElementType x = node.type(), parameters = node.inputs[1].type;
  if (!is_float(x)) return no_kernel(x);
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (node.inputs[i].type != parameters) return "the parameters have different element types";
  }
  return parameters == x || parameters == ElementType::kFloat
             ? ""
             : std::string("no kernel for parameters of ") + element_type_name(parameters);
}

}  // namespace

void add_scale_shift(Kernels& kernels) {
  kernels.add_cpu<ScaleShiftOp, ScaleShiftKernel>(Reuse::kInplace);
  kernels.add_gpu<ScaleShiftOp, BuiltInGpuKernel<ScaleShiftOp, gpu::scale_shift_plan>>(Where::kGpu,
                                                                                       Reuse::kInplace);
  kernels.have_channels_last<ScaleShiftOp, ScaleShiftChannelsLastGpu>(
      [](const Node&) { return Layout::kFollows; });
  kernels.add_with_both_layouts("BatchNormalization", 7, 15, plan_batch_normalization)
      .refused(refuse_batch_norm)
      .reuses(Reuse::kInplace);
}

}  // namespace graphopt
