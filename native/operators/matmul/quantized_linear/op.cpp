#include "operators/matmul/quantized_linear/op.h"

#include <memory>

#include "cpu/vnni.h"
#include "operators/kernel_bases.h"

namespace graphopt {

std::vector<QuantizedLinearOp> QuantizedLinearOp::all() {
  using A = ActivationKind;
  std::vector<QuantizedLinearOp> ops;
  for (const A kind : {A::kNone, A::kRelu, A::kSilu, A::kGelu, A::kGeluTanh, A::kMish})
    ops.emplace_back(kind);
  return ops;
}

std::string QuantizedLinearOp::name() const {
  return std::string("QuantizedLinear") + activation_suffix(act_.kind);
}

std::vector<Operand> QuantizedLinearOp::inputs() const {
  return {Operand::kTensor, Operand::kAny, Operand::kFloat, Operand::kAny, Operand::kFloat};
}

QuantizedLinearProblem QuantizedLinearOp::problem(const Shapes& inputs) const {
  const Shape &x = inputs[0], &w = inputs[1];
  throw_if(x.rank() < 1, "X must have rank 1 or more");
  throw_if(w.rank() != 2, "W must be a matrix, got ", w);
  QuantizedLinearProblem p;
  p.K = w[0];
  p.N = w[1];
  p.act = act_;
  throw_if(x[x.rank() - 1] != p.K, "the last axis of X ", x, " differs from the first axis of W ", w);
  require_shape("w_scale", inputs[2], {p.N});
  require_shape("w_zero_point", inputs[3], {p.N});
  require_shape("b", inputs[4], {p.N});
  p.rows = x.elements(0, x.rank() - 1);
  return p;
}

Shape QuantizedLinearOp::output(const Shapes& inputs) const {
  Shape y = inputs[0];
  y[y.rank() - 1] = inputs[1][1];
  return y;
}

void QuantizedLinearOp::infer(const ShapeInference& node) const {
  SymbolicShape y = node.input(0);
  const SymbolicShape w = node.input(1);
  if (y.empty() || w.size() != 2) return;
  y.back() = w[1];
  node.set_output(0, y);
}

namespace {

// The kernel is float only and ignores the type parameter of add_cpu.
template <class>
class QuantizedLinearCpu final : public CpuKernel<QuantizedLinearOp> {
 public:
  using CpuKernel::CpuKernel;

  void prepare(const Node& node) override {
    const auto w = node.constant(1);
    if (!w || !is_byte(w->type) || w->shape.rank() != 2) return;
    Problem p;
    p.K = w->shape[0];
    p.N = w->shape[1];
    packed_.pack(std::string("panels of four bytes") + (cpu::has_vnni() ? " for VNNI" : "") + " of " +
                     element_type_name(w->type) + w->shape.text(),
                 w->data, w->bytes(), cpu::quantized_linear_weights<float>(p), [&](void* packed) {
                   cpu::quantized_linear_prepare<float>(p, bytes_of_weight(*w, nullptr), packed);
                 });
  }

  bool run(Call& call) const override {
    const Tensor &w = call.inputs[1], &zero_points = call.inputs[3];
    throw_if(!is_byte(w.type), "W must be int8 or uint8, got ", element_type_name(w.type));
    throw_if(zero_points.type != w.type, "w_zero_point must have the type of W, got ",
             element_type_name(zero_points.type));
    const Problem& p = problem(call);
    const cpu::WeightBytes bytes = bytes_of_weight(w, zero_points.as<const uint8_t>());
    const auto [packed, scratch] =
        packed_.of_run(call.workspace, cpu::quantized_linear_weights<float>(p),
                       [&](void* to) { cpu::quantized_linear_prepare<float>(p, bytes, to); });
    cpu::quantized_linear<float>(p, data<float>(call, 0), packed, bytes, data<float>(call, 2),
                                 data<float>(call, 4), call.outputs[0].as<float>(), *call.parallel, scratch);
    return true;
  }

 private:
  size_t workspace(const Problem& p, size_t workers) const override {
    return cpu::quantized_linear_workspace<float>(p, workers) +
           packed_.in_workspace(cpu::quantized_linear_weights<float>(p));
  }
  static cpu::WeightBytes bytes_of_weight(const Tensor& w, const uint8_t* zero_points) {
    return {w.as<const uint8_t>(), zero_points, w.type == ElementType::kInt8};
  }

  PackedWeights packed_;
};

}  // namespace

void add_quantized_linear(Kernels& kernels) {
  kernels.add_cpu<QuantizedLinearOp, QuantizedLinearCpu>(Reuse::kNone, {ElementType::kFloat});
}

}  // namespace graphopt
