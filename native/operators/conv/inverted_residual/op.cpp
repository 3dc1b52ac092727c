#include "operators/conv/inverted_residual/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
std::vector<InvertedResidualOp> InvertedResidualOp::all() {
  return with_tails<InvertedResidualOp>({false, true}, all_activations());
}

std::vector<Operand> InvertedResidualOp::inputs() const {
  return std::vector<Operand>(tail_.has_residual ? kResidual + 1 : kResidual, Operand::kTensor);
}

void InvertedResidualOp::read(const Node& node) {
  TailedOperator::read(node);
  pads_ = get_sizes(node, "pads", 4, 0);
  strides_ = get_sizes(node, "strides", 2, 1);
  group_ = node.get_int("group");
  throw_if(group_ < 1, "attribute 'group' must be 1 or more");
}

InvertedResidualProblem InvertedResidualOp::of_weights(const std::vector<Shape>& weights) const {
  const Shape &first = weights[0], &window = weights[2], &last = weights[4];
  for (const Shape& w : {first, window, last}) {
    throw_if(w.rank() != 4, "weights must have rank 4, got ", w);
  }
  InvertedResidualProblem p;
  p.M = first[0];
  p.C = first[1];
  p.O = last[0];
  for (size_t i = 0; i < 2; ++i) {
    p.kernel[i] = window[2 + i];
    p.stride[i] = strides_[i];
    p.pad[i] = pads_[i];
  }
  require_shape("W1", first, {p.M, p.C, 1, 1});
  require_shape("B1", weights[1], {p.M});
  require_shape("W2", window, {p.M, 1, p.kernel[0], p.kernel[1]});
  require_shape("B2", weights[3], {p.M});
  require_shape("W3", last, {p.O, p.M, 1, 1});
  require_shape("B3", weights[5], {p.O});
  throw_if(group_ != p.M, "attribute 'group' is not the number of channels of W2 ", window);
  throw_if(p.taps() < 1, "W2 ", window, " has an empty window");
  p.has_residual = tail_.has_residual;
  p.act = tail_.act;
  return p;
}

InvertedResidualProblem InvertedResidualOp::problem(const Shapes& inputs) const {
  std::vector<Shape> weights;
  for (size_t i = 1; i <= kWeights; ++i) weights.push_back(inputs[i]);
  InvertedResidualProblem p = of_weights(weights);
  const Shape& x = inputs[0];
  throw_if(x.rank() != 4, "X must have rank 4, got ", x);
  throw_if(x[1] != p.C, "X ", x, " and W1 ", inputs[1], " have different numbers of channels");
  p.N = x[0];
  double padded = static_cast<double>(p.C + p.M + p.O);
  for (size_t i = 0; i < 2; ++i) {
    p.in[i] = x[2 + i];
    const int64_t all = p.in[i] + pads_[i] + pads_[2 + i];
    throw_if(all < p.kernel[i], "X ", x, " with its pads is smaller than the window");
    p.out[i] = (all - p.kernel[i]) / p.stride[i] + 1;
    padded *= static_cast<double>(all + p.stride[i]);
  }
  throw_if(padded > 0x1p40, "X ", x, " with its pads is too large");
  if (p.has_residual) require_same_shape("R", inputs[kResidual], "Y", {p.N, p.O, p.out[0], p.out[1]});
  return p;
}

Shape InvertedResidualOp::output(const Shapes& inputs) const {
  const InvertedResidualProblem p = problem(inputs);
  return {p.N, p.O, p.out[0], p.out[1]};
}

void InvertedResidualOp::infer(const ShapeInference& node) const {
  const SymbolicShape x = node.input(0), window = node.input(3), last = node.input(5);
  const auto pads = find_sizes(node, "pads", 4, 0), strides = find_sizes(node, "strides", 2, 1);
  if (x.size() != 4 || window.size() != 4 || last.size() != 4 || !pads || !strides) return;
  SymbolicShape y = {x[0], last[0], x[2], x[3]};
  for (size_t i = 0; i < 2; ++i) {
    if (!window[2 + i].known()) return;
    const int64_t growth = (*pads)[i] + (*pads)[2 + i] - window[2 + i].value, stride = (*strides)[i];
    if (stride == 1 && growth == -1) continue;
    if (!x[2 + i].known() || x[2 + i].value + growth < 0) return;
    y[2 + i] = Dim{(x[2 + i].value + growth) / stride + 1, ""};
  }
  node.set_output(0, y);
}

namespace {

// The kernel is float only and ignores the type parameter of add_cpu.
template <class>
class InvertedResidualCpu final : public CpuKernel<InvertedResidualOp> {
 public:
  using CpuKernel::CpuKernel;

  void prepare(const Node& node) override {
    std::vector<Shape> shapes;
    std::vector<float> values;
    std::array<size_t, InvertedResidualOp::kWeights> begins{};
    for (size_t i = 0; i < begins.size(); ++i) {
      const auto w = node.constant(1 + i);
      if (!w) return;
      begins[i] = values.size();
      const auto* first = w->as<const float>();
      values.insert(values.end(), first, first + w->shape.elements());
      shapes.push_back(w->shape);
    }
    const InvertedResidualProblem p = op_.of_weights(shapes);
    packed_.pack("inverted residual of " + shapes[0].text() + shapes[2].text() + shapes[4].text(),
                 values.data(), values.size() * sizeof(float), cpu::inverted_residual_weights<float>(p),
                 [&](void* packed) {
                   cpu::InvertedResidualWeights<float> from;
                   for (size_t i = 0; i < begins.size(); ++i) from[i] = values.data() + begins[i];
                   cpu::inverted_residual_prepare(p, from, packed);
                 });
  }

  bool run(Call& call) const override {
    const InvertedResidualProblem& p = problem(call);
    const auto [packed, scratch] =
        packed_.of_run(call.workspace, cpu::inverted_residual_weights<float>(p), [&](void* to) {
          cpu::InvertedResidualWeights<float> from;
          for (size_t i = 0; i < from.size(); ++i) from[i] = data<float>(call, 1 + i);
          cpu::inverted_residual_prepare(p, from, to);
        });
    cpu::inverted_residual(p, data<float>(call, 0), packed,
                           p.has_residual ? data<float>(call, InvertedResidualOp::kResidual) : nullptr,
                           call.outputs[0].as<float>(), *call.parallel, scratch);
    return true;
  }

 private:
  size_t workspace(const InvertedResidualProblem& p, size_t workers) const override {
    return packed_.in_workspace(cpu::inverted_residual_weights<float>(p)) +
           cpu::inverted_residual_workspace<float>(p, workers);
  }

  PackedWeights packed_;
};

}  // namespace

void add_inverted_residual(Kernels& kernels) {
  kernels.add_cpu<InvertedResidualOp, InvertedResidualCpu>(Reuse::kNone, {ElementType::kFloat});
}

}  // namespace graphopt
