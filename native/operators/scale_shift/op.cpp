#include "operators/scale_shift/op.h"

#include "operators/room.h"

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

}  // namespace

void add_scale_shift(Kernels& kernels) {
  kernels.add_cpu<ScaleShiftOp, ScaleShiftKernel>(Reuse::kInplace);
  kernels.add_gpu<ScaleShiftOp, GpuKernel<ScaleShiftOp, kImplementations>>(Where::kGpu, Reuse::kInplace);
}

}  // namespace graphopt
