#include "operators/row_norm/op.h"

#include "operators/elementwise/op.h"
#include "operators/room.h"

namespace graphopt {

std::vector<RowNormOp> RowNormOp::all() {
  std::vector<RowNormOp> ops;
  for (bool rms : {false, true}) {
    for (int suffixes : {0, 1, 2}) {
      RowNormOp op;
      op.rms_ = rms;
      op.add_ = suffixes >= 1;
      op.sum_ = suffixes == 2;
      ops.push_back(op);
    }
  }
  return ops;
}

std::string RowNormOp::name() const {
  return std::string(rms_ ? "FusedRmsNorm" : "FusedLayerNorm") + (add_ ? "Add" : "") + (sum_ ? "Sum" : "");
}

std::vector<Operand> RowNormOp::inputs() const {
  return std::vector<Operand>(2 + (add_ ? 1 : 0) + (rms_ ? 0 : 1), Operand::kTensor);
}

void RowNormOp::read(const Node& node) { epsilon_ = node.get_float("epsilon"); }

RowNormProblem RowNormOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  if (x.rank() < 1) throw Error("X must have rank 1 or more");
  if (add_) require_like("R", inputs[1], "X", x);
  const Shape row = {x[x.rank() - 1]};
  const size_t gamma = add_ ? 2 : 1, beta = gamma + 1;
  require_shape("gamma", inputs[gamma], row);
  if (!rms_) require_shape("beta", inputs[beta], row);
  RowNormProblem p;
  p.D = row[0];
  p.rows = 1;
  for (size_t i = 0; i + 1 < x.rank(); ++i) p.rows *= x[i];
  p.epsilon = epsilon_;
  p.rms = rms_;
  p.has_residual = add_;
  p.writes_sum = sum_;
  return p;
}

namespace {

template <class T>
class RowNormKernel final : public CpuKernel<RowNormOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    const RowNormProblem& p = problem(call);
    const size_t gamma = p.has_residual ? 2 : 1;
    cpu::row_norm(p, data<T>(call, 0), p.has_residual ? data<T>(call, 1) : nullptr, data<T>(call, gamma),
                  p.rms ? nullptr : data<T>(call, gamma + 1), call.outputs[0].as<T>(),
                  p.writes_sum ? call.outputs[1].as<T>() : nullptr, *call.parallel, call.workspace);
    return true;
  }

 private:
  size_t workspace(const RowNormProblem& p, size_t lanes) const override {
    return cpu::row_norm_workspace<T>(p, lanes);
  }
};

void plan_own(GpuWork<RowNormProblem>& work) {
  work.program.launch(gpu::row_norm_plan(work.p, work.half, work.call.aligned(), work.device.facts()),
                      work.call);
}

constexpr Implementation<GpuWork<RowNormProblem>> kImplementations[] = {
    {"a kernel of our own", take_all<GpuWork<RowNormProblem>>, plan_own},
};

class LayerNormalization final : public gpu::DeviceKernel {
 public:
  LayerNormalization(const Node& node, gpu::Device& device)
      : DeviceKernel(device), epsilon_(node.find_float("epsilon").value_or(1e-5f)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &gamma = call.input(1), &beta = call.input(2);
    const int64_t D = gamma.shape.elements();
    if (x.shape.rank() == 0 || x.shape.elements(x.shape.rank() - 1) != D || beta.shape.elements() != D) {
      throw Error("Scale and B must have the size of the last axis");
    }
    const RowNormProblem p = {D == 0 ? 0 : x.shape.elements() / D, D, epsilon_, false, false, false};
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::row_norm_plan(p, is_half(x), call.aligned(), device_.facts()),
                   {Ref::input(0), Ref::input(1), Ref::input(2)}, {y});
  }

  float epsilon_;
};

// X, scale.
class SimplifiedLayerNormalization final : public gpu::DeviceKernel {
 public:
  SimplifiedLayerNormalization(const Node& node, gpu::Device& device)
      : DeviceKernel(device), epsilon_(node.find_float("epsilon").value_or(1e-5f)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &gamma = call.input(1);
    const int64_t D = gamma.shape.elements();
    if (x.shape.rank() == 0 || x.shape.elements(x.shape.rank() - 1) != D) {
      throw Error("the scale must have the size of the last axis");
    }
    const RowNormProblem p = {D == 0 ? 0 : x.shape.elements() / D, D, epsilon_, true, false, false};
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::row_norm_plan(p, is_half(x), call.aligned(), device_.facts()),
                   {Ref::input(0), Ref::input(1)}, {y});
  }

  float epsilon_;
};

// Norm of input + skip + bias: inputs input, skip, gamma, (beta unless rms,) bias; outputs 0 and 3, the sum.
class SkipNorm final : public gpu::DeviceKernel {
 public:
  SkipNorm(const Node& node, gpu::Device& device, bool rms)
      : DeviceKernel(device), rms_(rms), epsilon_(node.find_float("epsilon").value_or(1e-12f)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &skip = call.input(1), &gamma = call.input(2);
    const int64_t D = gamma.shape.elements();
    const size_t beta = 3, bias = rms_ ? 3 : 4;
    if (x.shape.rank() == 0 || x.shape[x.shape.rank() - 1] != D) {
      throw Error("gamma must have the size of the last axis");
    }
    if (!rms_ && call.has_input(beta) && call.input(beta).shape.elements() != D) {
      throw Error("beta must have the size of the last axis");
    }
    const bool half = is_half(x);
    RowNormProblem p = {
        D == 0 ? 0 : x.shape.elements() / D, D, epsilon_, rms_, true, call.outputs.size() > 3};
    p.has_beta = !rms_ && call.has_input(beta);
    for (size_t i = 0; i < call.outputs.size(); ++i) set_output(call, i, x.shape);
    Ref from = Ref::input(0), other = Ref::input(1);
    const auto add = [&](const Shape& b, Ref which) {
      const Ref sum = program.reserve(x.shape.elements() * bytes_of(x.type));
      program.launch(gpu::add_plan(x.shape, b, half, call.aligned()), {from, which}, {sum});
      from = sum;
    };
    if (call.has_input(bias)) add(call.input(bias).shape, Ref::input(bias));
    if (skip.shape != x.shape) {  // repeated for each sequence
      const Ref repeated = program.reserve(x.shape.elements() * bytes_of(x.type));
      program.launch(gpu::broadcast_plan(skip.shape, x.shape, half, call.aligned()), {other}, {repeated});
      other = repeated;
    }
    const Ref b = p.has_beta ? Ref::input(beta) : Ref();
    program.launch(gpu::row_norm_plan(p, half, call.aligned(), device_.facts()),
                   {from, other, Ref::input(2), b}, {Ref::output(0), p.writes_sum ? Ref::output(3) : Ref()});
  }

  bool rms_;
  float epsilon_;
};

std::string refuse_simplified(const Node& node) {
  const std::string mixed = refuse_mixed_floats(node);
  if (!mixed.empty()) return mixed;
  if (node.outputs.size() > 1 && node.outputs[1].present) return "only the first output";
  return refuse_unless_last(node, node.find_int("axis").value_or(-1));
}

std::string refuse_skip_norm(const Node& node) {
  const std::string mixed = refuse_mixed_floats(node);
  if (!mixed.empty()) return mixed;
  for (size_t i = 1; i < 3 && i < node.outputs.size(); ++i) {
    if (node.outputs[i].present) return "mean and deviation are no outputs";
  }
  return "";
}

std::string refuse_layer_norm(const Node& node) {
  const std::string mixed = refuse_mixed_floats(node);
  if (!mixed.empty()) return mixed;
  if (!node.has_input(2)) return "without B";
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i].present) return "only the first output";
  }
  return refuse_unless_last(node, node.find_int("axis").value_or(-1));
}

}  // namespace

void add_row_norm(Kernels& kernels) {
  kernels.add_cpu<RowNormOp, RowNormKernel>(Reuse::kInplace);
  kernels.add_gpu<RowNormOp, GpuKernel<RowNormOp, kImplementations>>(Where::kGpu, Reuse::kInplace);
  kernels.add_onnx<SimplifiedLayerNormalization>("SimplifiedLayerNormalization", 1, 1)
      .refused(refuse_simplified);
  kernels.add_microsoft<SkipNorm>("SkipLayerNormalization", false).refused(refuse_skip_norm);
  kernels.add_microsoft<SkipNorm>("SkipSimplifiedLayerNormalization", true).refused(refuse_skip_norm);
  kernels.add_onnx<LayerNormalization>("LayerNormalization", 1, 17).refused(refuse_layer_norm);
}

}  // namespace graphopt
