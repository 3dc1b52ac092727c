#include "operators/conv/fused_conv_transpose/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {

std::vector<FusedConvTransposeOp> FusedConvTransposeOp::all() {
  return with_tails_and_slopes<FusedConvTransposeOp>();
}

void FusedConvTransposeOp::read(const Node& node) {
  TailedOperator::read(node);
  const size_t axes = node.get_ints("strides").size();
  if (axes < 1 || axes > 3) throw Error("attribute 'strides' must have one to three numbers");
  strides_ = get_sizes(node, "strides", axes, 1);
  dilations_ = get_sizes(node, "dilations", axes, 1);
  pads_ = get_sizes(node, "pads", 2 * axes, 0);
  output_padding_ = get_sizes(node, "output_padding", axes, 0);
  group_ = node.get_int("group");
  if (group_ < 1 || group_ > INT32_MAX)
    throw Error("attribute 'group' must be 1 or more, and less than 2^31");
}

ConvolutionProblem FusedConvTransposeOp::window_problem(const Shape& w) const {
  const size_t axes = strides_.size();
  if (w.rank() != axes + 2) {
    throw Error("W must have " + std::to_string(axes + 2) + " axes, as 'strides' says, got " + w.text());
  }
  if (w[0] % group_ != 0)
    throw Error("W " + w.text() + " is not made of " + std::to_string(group_) + " groups");
  ConvolutionProblem p;
  p.transposed = true;
  p.C = w[0] / group_;
  p.M = w[1];
  p.groups = group_;
  for (size_t i = 0; i < axes; ++i) {
    const size_t axis = 3 - axes + i;
    p.kernel[axis] = w[2 + i];
    p.stride[axis] = strides_[i];
    p.dilation[axis] = dilations_[i];
    p.pad[axis] = pads_[i];
    if (w[2 + i] < 1) throw Error("W " + w.text() + " has an empty window");
  }
  p.has_bias = true;
  p.has_residual = tail_.has_residual;
  p.act = tail_.act;
  p.has_slopes = tail_.has_slopes;
  return p;
}

void FusedConvTransposeOp::set_sizes(ConvolutionProblem& p, const Shape& x) const {
  const size_t axes = strides_.size();
  p.N = std::max<int64_t>(x[0], 0);
  double whole = static_cast<double>(group_) * (static_cast<double>(p.C) + static_cast<double>(p.M));
  for (size_t i = 0; i < axes; ++i) {
    const auto in = static_cast<double>(std::max<int64_t>(x[2 + i], 1));
    const double window = static_cast<double>(p.kernel[3 - axes + i]) * static_cast<double>(dilations_[i]);
    whole *= in * static_cast<double>(strides_[i]) + window + static_cast<double>(output_padding_[i]);
  }
  if (whole > 0x1p40) throw Error("Y of X " + x.text() + " is too large before its pads are taken away");
  for (size_t i = 0; i < axes; ++i) {
    const size_t axis = 3 - axes + i;
    p.in[axis] = std::max<int64_t>(x[2 + i], 0);
    p.out[axis] =
        (p.in[axis] - 1) * strides_[i] + output_padding_[i] + p.span(axis) - pads_[i] - pads_[axes + i];
  }
}

ConvolutionProblem FusedConvTransposeOp::static_problem(const std::optional<Shape>& x, const Shape& w) const {
  ConvolutionProblem p = window_problem(w);
  set_sizes(p, x && x->rank() == w.rank() ? *x : Shape(w.rank()));
  return p;
}

ConvolutionProblem FusedConvTransposeOp::problem(const Shapes& inputs) const {
  const Shape &x = inputs[0], &w = inputs[1];
  ConvolutionProblem p = window_problem(w);
  if (x.rank() != w.rank()) throw Error("X " + x.text() + " and W " + w.text() + " differ in their axes");
  if (x[1] != p.x_channels()) {
    throw Error("X " + x.text() + " has " + std::to_string(x[1]) + " channels, W " + w.text() + " wants " +
                std::to_string(p.x_channels()));
  }
  set_sizes(p, x);
  for (const int64_t out : p.out) {
    if (out < 0) throw Error("the pads take more away than X " + x.text() + " gives");
  }
  require_shape("B", inputs[2], {p.y_channels()});
  const Shape y = output(inputs);
  require_slopes(inputs, y);
  require_residual(inputs, "Y", y);
  return p;
}

Shape FusedConvTransposeOp::output(const Shapes& inputs) const {
  ConvolutionProblem p = window_problem(inputs[1]);
  Shape y = inputs[0];
  set_sizes(p, y);
  y[1] = p.y_channels();
  for (size_t i = 2; i < y.rank(); ++i) y[i] = p.out[i + 3 - y.rank()];
  return y;
}

void FusedConvTransposeOp::infer(const ShapeInference& node) const {
  const SymbolicShape x = node.input(0), w = node.input(1);
  if (x.size() < 3 || w.size() != x.size()) return;
  const size_t axes = x.size() - 2;
  const auto strides = find_sizes(node, "strides", axes, 1),
             dilations = find_sizes(node, "dilations", axes, 1), pads = find_sizes(node, "pads", 2 * axes, 0),
             more = find_sizes(node, "output_padding", axes, 0);
  const auto group = node.find_int("group");
  if (!strides || !dilations || !pads || !more || !group || *group < 1 || *group > INT32_MAX) return;
  const auto small = [](const Dim& d) { return d.known() && d.value <= INT32_MAX; };
  if (!small(w[1])) return;
  SymbolicShape y = {x[0], Dim{w[1].value * *group, ""}};
  for (size_t i = 0; i < axes; ++i) {
    const Dim &in = x[2 + i], &kernel = w[2 + i];
    if (!small(kernel) || kernel.value < 1 || (in.known() ? !small(in) : in.symbol.empty())) return;
    const int64_t stride = (*strides)[i];
    const int64_t growth =
        (kernel.value - 1) * (*dilations)[i] + 1 - stride + (*more)[i] - (*pads)[i] - (*pads)[axes + i];
    if (in.known()) {
      if (in.value * stride + growth < 0) return;
      y.push_back(Dim{in.value * stride + growth, ""});
    } else if (stride == 1 && growth == 0) {
      y.push_back(in);
    } else {
      // The same symbol means the same size in a whole model, so a symbol made from one is as good as one.
      y.push_back(Dim{-1, "(" + in.symbol + ")*" + std::to_string(stride) + "+" + std::to_string(growth)});
    }
  }
  node.set_output(0, y);
}

namespace {

template <class T>
class FusedConvTransposeCpu final
    : public PackedCpuKernel<FusedConvTransposeOp, cpu::fused_conv_transpose_kernels<T>> {
 public:
  using Base = PackedCpuKernel<FusedConvTransposeOp, cpu::fused_conv_transpose_kernels<T>>;
  using Base::Base;

 private:
  cpu::OnlyWay way(const ConvolutionProblem&) const override { return {}; }
  std::string layout(const ConvolutionProblem& p, cpu::OnlyWay) const override {
    std::string text = "transposed blocks of " + std::to_string(p.groups) + " groups";
    for (size_t i = 0; i < 3; ++i) {
      text +=
          ", stride " + std::to_string(p.stride[i]) + " of taps " + std::to_string(p.dilation[i]) + " apart";
    }
    return text;
  }
  void compute(const ConvolutionProblem& p, cpu::OnlyWay way, const Call& call, const void* packed,
               void* scratch) const override {
    if (!p.has_slopes) return Base::compute(p, way, call, packed, scratch);
    cpu::prelu_conv_transpose(p, data<T>(call, 0), packed, data<T>(call, 2),
                              p.has_residual ? data<T>(call, 3) : nullptr, data<T>(call, this->op_.slopes()),
                              call.outputs[0].as<T>(), *call.parallel, scratch);
  }
};

}  // namespace

void add_fused_conv_transpose(Kernels& kernels) {
  kernels.add_cpu<FusedConvTransposeOp, FusedConvTransposeCpu>();
}

}  // namespace graphopt
