#include "operators/fused_conv/op.h"

#include "operators/fused_conv/cpu.h"
#include "operators/room.h"

namespace graphopt {

// So that sizes that are made of them have 64 bits.
constexpr int64_t kLargest = 0x7fffffff;

namespace {

// Each with and without a residual sum, and with each activation.
template <class Op, class Set>
std::vector<Op> each(const Set& set) {
  std::vector<Op> ops;
  for (const bool add : {false, true}) {
    for (const ActivationKind kind : all_activations()) set(ops.emplace_back(), add, kind);
  }
  return ops;
}

}  // namespace

std::vector<FusedConvOp> FusedConvOp::all() {
  return each<FusedConvOp>([](FusedConvOp& op, bool add, ActivationKind kind) {
    op.add_ = add;
    op.act_.kind = kind;
  });
}

std::vector<FusedConvBf16Op> FusedConvBf16Op::all() {
  return each<FusedConvBf16Op>([](FusedConvBf16Op& op, bool add, ActivationKind kind) {
    op.add_ = add;
    op.act_.kind = kind;
    op.bfloat16_ = true;
  });
}

std::string FusedConvOp::name() const {
  return std::string("FusedConv") + (add_ ? "Add" : "") + activation_suffix(act_.kind) +
         (bfloat16_ ? "Bf16" : "");
}

std::vector<Operand> FusedConvOp::inputs() const {
  return std::vector<Operand>(add_ ? 4 : 3, Operand::kTensor);
}

void FusedConvOp::read(const Node& node) {
  act_ = read_activation(act_.kind, node);
  pads_ = node.get_ints("pads");
  strides_ = node.get_ints("strides");
  dilations_ = node.get_ints("dilations");
  group_ = node.get_int("group");
  const size_t axes = strides_.size();
  if (axes < 1 || axes > 3) throw Error("attribute 'strides' must have one to three numbers");
  require_sizes(axes, strides_, 1);
  require_sizes(axes, dilations_, 1);
  require_sizes(2 * axes, pads_, 0);
  for (const auto* numbers : {&pads_, &strides_, &dilations_}) {
    for (const int64_t number : *numbers) {
      if (number > kLargest) throw Error("an attribute of the window is " + std::to_string(number));
    }
  }
  if (group_ < 1 || group_ > kLargest) throw Error("attribute 'group' must be 1 or more, and less than 2^31");
}

FusedConvProblem FusedConvOp::window_problem(const Shape& w) const {
  const size_t axes = strides_.size();
  if (w.rank() != axes + 2) {
    throw Error("W must have " + std::to_string(axes + 2) + " axes, as 'strides' says, got " + w.text());
  }
  FusedConvProblem p;
  p.M = w[0];
  p.C = w[1] * group_;
  p.group = group_;
  if (p.M % group_ != 0)
    throw Error("W " + w.text() + " is not made of " + std::to_string(group_) + " groups");
  for (size_t i = 0; i < axes; ++i) {
    const size_t axis = 3 - axes + i;
    p.kernel[axis] = w[2 + i];
    p.stride[axis] = strides_[i];
    p.dilation[axis] = dilations_[i];
    p.pad_begin[axis] = pads_[i];
    p.pad_end[axis] = pads_[axes + i];
    if (w[2 + i] < 1) throw Error("W " + w.text() + " has an empty window");
  }
  p.has_residual = add_;
  p.bfloat16 = bfloat16_;
  p.act = act_;
  return p;
}

FusedConvProblem FusedConvOp::static_problem(const std::optional<Shape>& x, const Shape& w) const {
  FusedConvProblem p = window_problem(w);
  const bool known = x && x->rank() == w.rank();
  for (size_t i = 2; i < w.rank(); ++i) {
    p.in[i + 3 - w.rank()] = known ? std::max<int64_t>((*x)[i], 0) : 0;
  }
  return p;
}

FusedConvProblem FusedConvOp::problem(const Shapes& inputs) const {
  const Shape &x = inputs[0], &w = inputs[1];
  FusedConvProblem p = window_problem(w);
  if (x.rank() != w.rank()) throw Error("X " + x.text() + " and W " + w.text() + " differ in their axes");
  if (x[1] != p.C) {
    throw Error("X " + x.text() + " has " + std::to_string(x[1]) + " channels, W " + w.text() + " in " +
                std::to_string(group_) + " groups wants " + std::to_string(p.C));
  }
  p.N = x[0];
  for (size_t i = 2; i < x.rank(); ++i) p.in[i + 3 - x.rank()] = x[i];
  for (size_t axis = 0; axis < 3; ++axis) {
    if (p.out(axis) < 0) throw Error("X " + x.text() + " with its pads is smaller than the window");
  }
  double padded = static_cast<double>(p.C + p.M);
  for (size_t i = 0; i < 3; ++i) {
    padded *= static_cast<double>(p.in[i] + p.pad_begin[i] + p.pad_end[i] + p.stride[i]);
  }
  if (padded > 0x1p40) throw Error("X " + x.text() + " with its pads is too large");
  const Shape bias = {p.M};
  if (inputs[2] != bias) throw Error("B must be " + bias.text() + ", got " + inputs[2].text());
  const Shape y = output(inputs);
  if (add_ && inputs[3] != y) throw Error("R must be like Y " + y.text() + ", got " + inputs[3].text());
  return p;
}

Shape FusedConvOp::output(const Shapes& inputs) const {
  FusedConvProblem p = window_problem(inputs[1]);
  Shape y = inputs[0];
  y[1] = p.M;
  for (size_t i = 2; i < y.rank(); ++i) {
    const size_t axis = i + 3 - y.rank();
    p.in[axis] = y[i];
    y[i] = p.out(axis);
  }
  return y;
}

void FusedConvOp::infer(const ShapeInference& node) const {
  const SymbolicShape x = node.input(0), w = node.input(1);
  const auto strides = node.get_ints("strides"), dilations = node.get_ints("dilations"),
             pads = node.get_ints("pads");
  const size_t axes = strides.size();
  for (const auto* numbers : {&strides, &dilations, &pads}) {
    for (const int64_t number : *numbers) {
      if (number < 0 || number > kLargest) return;  // which the kernel refuses
    }
  }
  if (x.size() != axes + 2 || w.size() != axes + 2 || dilations.size() != axes || pads.size() != 2 * axes)
    return;
  SymbolicShape y = {x[0], w[0]};
  for (size_t i = 0; i < axes; ++i) {
    const Dim &in = x[2 + i], &kernel = w[2 + i];
    if (!kernel.known() || strides[i] < 1) return;
    const int64_t growth = pads[i] + pads[axes + i] - (kernel.value - 1) * dilations[i] - 1;
    if (in.known()) {
      if (in.value + growth < 0) return;
      y.push_back(Dim{(in.value + growth) / strides[i] + 1, ""});
    } else if (in.symbol.empty()) {
      return;
    } else if (strides[i] == 1 && growth == -1) {
      y.push_back(in);
    } else {
      // The same symbol means the same size in a whole model, so a symbol made from one is as good as one.
      y.push_back(Dim{
          -1, "((" + in.symbol + ")+" + std::to_string(growth) + ")/" + std::to_string(strides[i]) + "+1"});
    }
  }
  node.set_output(0, y);
}

namespace {

template <class Op, class T>
class FusedConvCpu final : public PackedCpuKernel<Op> {
 public:
  using PackedCpuKernel<Op>::PackedCpuKernel;

 private:
  cpu::FusedConvVectors vectors(const FusedConvProblem& p) const {
    return cpu::fused_conv_choose<T>(this->layout_problem(p));
  }
  std::string layout(const FusedConvProblem& p) const override {
    return std::string(p.bfloat16 ? "bfloat16 " : "") +
           (vectors(p) == cpu::FusedConvVectors::kPixels ? "blocks" : "panels") + " of " +
           std::to_string(p.group) + " groups";
  }
  size_t packed_bytes(const FusedConvProblem& p) const override {
    return cpu::fused_conv_weights<T>(p, vectors(p));
  }
  void pack(const FusedConvProblem& p, const Tensor& w, void* packed) const override {
    cpu::fused_conv_prepare(p, vectors(p), w.as<const T>(), packed);
  }
  size_t scratch(const FusedConvProblem& p, size_t lanes) const override {
    return cpu::fused_conv_workspace<T>(p, vectors(p), lanes);
  }
  void compute(const FusedConvProblem& p, const Call& call, const void* packed,
               void* scratch) const override {
    cpu::fused_conv(p, vectors(p), data<T>(call, 0), packed, data<T>(call, 2),
                    p.has_residual ? data<T>(call, 3) : nullptr, call.outputs[0].as<T>(), *call.parallel,
                    scratch);
  }
};

template <class T>
using InFull = FusedConvCpu<FusedConvOp, T>;
template <class T>
using InBfloat16 = FusedConvCpu<FusedConvBf16Op, T>;

}  // namespace

void add_fused_conv(Kernels& kernels) {
  kernels.add_cpu<FusedConvOp, InFull>();
  kernels.add_cpu<FusedConvBf16Op, InBfloat16>(Reuse::kNone, {ElementType::kFloat});
}

}  // namespace graphopt
