#include "operators/conv/fused_conv_transpose/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {
std::vector<FusedConvTransposeOp> FusedConvTransposeOp::all() {
  return with_tails_and_slopes<FusedConvTransposeOp>();
}

void FusedConvTransposeOp::read(const Node& node) {
  WindowedOperator::read(node);
  output_padding_ = get_sizes(node, "output_padding", strides_.size(), 0);
}

void FusedConvTransposeOp::set_channels(ConvolutionProblem& p, const Shape& w) const {
  p.transposed = true;
  p.C = w[0] / group_;
  p.M = w[1];
}

void FusedConvTransposeOp::set_sizes(ConvolutionProblem& p, const Shape& x) const {
  const size_t axes = strides_.size();
  p.N = std::max<int64_t>(x[0], 0);
  double unpadded = static_cast<double>(group_) * (static_cast<double>(p.C) + static_cast<double>(p.M));
  for (size_t i = 0; i < axes; ++i) {
    const auto in = static_cast<double>(std::max<int64_t>(x[2 + i], 1));
    const double window = static_cast<double>(p.kernel[3 - axes + i]) * static_cast<double>(dilations_[i]);
    unpadded *= in * static_cast<double>(strides_[i]) + window + static_cast<double>(output_padding_[i]);
  }
  throw_if(unpadded > 0x1p40, "Y of X ", x, " is too large before its pads are removed");
  for (size_t i = 0; i < axes; ++i) {
    const size_t axis = 3 - axes + i;
    p.in[axis] = std::max<int64_t>(x[2 + i], 0);
    p.out[axis] =
        (p.in[axis] - 1) * strides_[i] + output_padding_[i] + p.span(axis) - pads_[i] - pads_[axes + i];
  }
}

ConvolutionProblem FusedConvTransposeOp::problem(const Shapes& inputs) const {
  const Shape &x = inputs[0], &w = inputs[1];
  ConvolutionProblem p = window_problem(w);
  throw_if(x.rank() != w.rank(), "X ", x, " and W ", w, " differ in their axes");
  throw_if(x[1] != p.x_channels(), "X ", x, " has ", x[1], " channels, W ", w, " requires ", p.x_channels());
  set_sizes(p, x);
  for (const int64_t out : p.out) {
    throw_if(out < 0, "the pads are larger than the result for X ", x);
  }
  require_shape("B", inputs[2], {p.y_channels()});
  const Shape y = output(inputs);
  require_slopes(inputs, y);
  require_residual(inputs, "Y", y);
  return p;
}

void FusedConvTransposeOp::infer(const ShapeInference& node) const {
  const SymbolicShape x = node.input(0), w = node.input(1);
  if (x.size() < 3 || w.size() != x.size()) return;
  const size_t axes = x.size() - 2;
  const auto strides = find_sizes(node, "strides", axes, 1),
             dilations = find_sizes(node, "dilations", axes, 1), pads = find_sizes(node, "pads", 2 * axes, 0),
             output_padding = find_sizes(node, "output_padding", axes, 0);
  const auto group = node.find_int("group");
  if (!strides || !dilations || !pads || !output_padding || !group || *group < 1 || *group > INT32_MAX)
    return;
  const auto small = [](const Dim& d) { return d.known() && d.value <= INT32_MAX; };
  if (!small(w[1])) return;
  SymbolicShape y = {x[0], Dim{w[1].value * *group, ""}};
  for (size_t i = 0; i < axes; ++i) {
    const Dim &in = x[2 + i], &kernel = w[2 + i];
    if (!small(kernel) || kernel.value < 1 || (in.known() ? !small(in) : in.symbol.empty())) return;
    const int64_t stride = (*strides)[i];
    const int64_t growth = (kernel.value - 1) * (*dilations)[i] + 1 - stride + (*output_padding)[i] -
                           (*pads)[i] - (*pads)[axes + i];
    if (in.known()) {
      if (in.value * stride + growth < 0) return;
      y.push_back(Dim{in.value * stride + growth, ""});
    } else if (stride == 1 && growth == 0) {
      y.push_back(in);
    } else {
      // A symbol means the same size in the entire model, and so does a symbol derived from it.
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
  using PackedCpuKernel<FusedConvTransposeOp, cpu::fused_conv_transpose_kernels<T>>::PackedCpuKernel;

 private:
  cpu::OnlyAlgorithm choose_algorithm(const ConvolutionProblem&) const override { return {}; }
  std::string layout(const ConvolutionProblem& p, cpu::OnlyAlgorithm) const override {
    std::string text = "transposed blocks of " + std::to_string(p.groups) + " groups";
    for (size_t i = 0; i < 3; ++i) {
      text +=
          ", stride " + std::to_string(p.stride[i]) + " of taps " + std::to_string(p.dilation[i]) + " apart";
    }
    return text;
  }
};

}  // namespace

void add_fused_conv_transpose(Kernels& kernels) {
  kernels.add_cpu<FusedConvTransposeOp, FusedConvTransposeCpu>();
}

}  // namespace graphopt
