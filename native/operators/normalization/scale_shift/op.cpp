#include "operators/normalization/scale_shift/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {

std::vector<ScaleShiftOp> ScaleShiftOp::all() {
  return with_tails<ScaleShiftOp>({false, true}, all_activations());
}

ScaleShiftProblem ScaleShiftOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  if (x.rank() < 2) throw Error("X must have rank 2 or more, got " + x.text());
  Shape per_channel(x.rank() - 1);
  for (size_t i = 0; i < per_channel.rank(); ++i) per_channel[i] = i == 0 ? x[1] : 1;
  require_shape("scale", inputs[1], per_channel);
  require_shape("shift", inputs[2], per_channel);
  require_residual(inputs, "X", x);
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
class ScaleShiftKernel final : public CpuKernel<ScaleShiftOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    const ScaleShiftProblem& p = problem(call);
    cpu::scale_shift(p, data<T>(call, 0), data<T>(call, 1), data<T>(call, 2),
                     p.has_residual ? data<T>(call, 3) : nullptr, call.outputs[0].as<T>(), *call.parallel,
                     call.workspace);
    return true;
  }

 private:
  size_t workspace(const ScaleShiftProblem& p, size_t) const override {
    return cpu::scale_shift_workspace<T>(p);
  }
};

void plan_own(GpuWork<ScaleShiftProblem>& work) {
  work.program.launch(gpu::scale_shift_plan(work.p, work.half, work.call.aligned()), work.call);
}

constexpr Implementation<GpuWork<ScaleShiftProblem>> kImplementations[] = {
    {"a kernel of our own", take_all<GpuWork<ScaleShiftProblem>>, plan_own},
};

// Inputs X, scale, B, mean, variance; not in training.
class BatchNormalization final : public gpu::DeviceKernel {
 public:
  BatchNormalization(const Node& node, gpu::Device& device)
      : DeviceKernel(device), epsilon_(node.find_float("epsilon").value_or(1e-5f)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    ScaleShiftProblem p;
    const size_t rank = x.shape.rank();
    if (rank == 0) throw Error("X must have an axis");
    p.N = x.shape[0];
    p.C = rank == 1 ? 1 : x.shape[1];
    p.inner = rank == 1 ? 1 : x.shape.elements(2);
    for (size_t i = 1; i < 5; ++i) {
      if (call.input(i).shape != Shape{p.C}) {
        throw Error("scale, B, mean and variance must have a number for each of " + std::to_string(p.C) +
                    " channels");
      }
    }
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::batch_norm_plan(p, epsilon_, is_half(x), is_half(call.input(1)), call.aligned()),
                   {Ref::input(0), Ref::input(1), Ref::input(2), Ref::input(3), Ref::input(4)}, {y});
  }

  float epsilon_;
};

std::string refuse_batch_norm(const Node& node) {
  if (node.find_int("training_mode").value_or(0) != 0) return "training";
  if (node.version < 9 && node.find_int("spatial").value_or(1) == 0) return "statistics of each pixel";
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i].present) return "only the first output";
  }
  const ElementType x = node.type(), parameters = node.inputs[1].type;
  if (!is_float(x)) return no_kernel(x);
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (node.inputs[i].type != parameters) return "float and float16 parameters";
  }
  return parameters == x || parameters == ElementType::kFloat
             ? ""
             : std::string("no kernel for parameters of ") + element_type_name(parameters);
}

}  // namespace

void add_scale_shift(Kernels& kernels) {
  kernels.add_cpu<ScaleShiftOp, ScaleShiftKernel>(Reuse::kInplace);
  kernels.add_gpu<ScaleShiftOp, GpuKernel<ScaleShiftOp, kImplementations>>(Where::kGpu, Reuse::kInplace);
  kernels.add_onnx<BatchNormalization>("BatchNormalization", 7, 15)
      .refused(refuse_batch_norm)
      .reuses(Reuse::kInplace);
}

}  // namespace graphopt
