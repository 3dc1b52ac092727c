#include "operators/elementwise/gated/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
std::vector<GatedOp> GatedOp::all() {
  using A = ActivationKind;
  std::vector<GatedOp> ops;
  for (const bool halves : {false, true}) {
    for (const A kind : {A::kRelu, A::kSigmoid, A::kSilu, A::kGelu, A::kGeluTanh}) {
      GatedOp op;
      op.halves_ = halves;
      op.act_.kind = kind;
      ops.push_back(op);
    }
  }
  return ops;
}

std::string GatedOp::name() const {
  return std::string(halves_ ? "GatedHalves" : "Gated") + activation_suffix(act_.kind);
}

void GatedOp::read(const Node& node) {
  act_ = read_activation(act_.kind, node);
  if (!halves_) return;
  gate_ = node.get_int("gate");
  throw_if(gate_ != 0 && gate_ != 1, "attribute 'gate' must be 0 or 1, got ", gate_);
}

GatedProblem GatedOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  throw_if(x.rank() < 1, "the input must have rank 1 or more");
  if (!halves_) require_same_shape("B", inputs[1], "A", x);
  throw_if(halves_ && x[x.rank() - 1] % 2 != 0, "the last axis must have two halves, got ", x);
  const Shape y = output(inputs);
  GatedProblem p;
  p.D = y[y.rank() - 1];
  p.rows = y.elements(0, y.rank() - 1);
  p.halves = halves_;
  p.gate = gate_;
  p.act = act_;
  return p;
}

Shape GatedOp::output(const Shapes& inputs) const {
  Shape y = inputs[0];
  if (halves_) y[y.rank() - 1] /= 2;
  return y;
}

void GatedOp::infer(const ShapeInference& node) const {
  SymbolicShape y = node.input(0);
  if (halves_ && !y.empty()) {
    if (!y.back().known()) return;
    y.back().value /= 2;
  }
  node.set_output(0, y);
}

namespace {

template <class T>
using GatedKernel = CpuKernelOf<GatedOp, T, 2, cpu::gated<T>>;

}  // namespace

void add_gated(Kernels& kernels) {
  kernels.add_cpu<GatedOp, GatedKernel>();
  kernels.add_gpu<GatedOp, BuiltInGpuKernel<GatedOp, gpu::gated_plan>>(Where::kGpu);
}

}  // namespace graphopt
