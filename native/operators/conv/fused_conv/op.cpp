#include "operators/conv/fused_conv/op.h"

#include "operators/conv/fused_conv/cpu.h"
#include "operators/kernel_bases.h"

namespace graphopt {
void WindowedOperator::read(const Node& node) {
  TailedOperator::read(node);
  const size_t axes = node.get_ints("strides").size();
  throw_if(axes < 1 || axes > 3, "attribute 'strides' must have one to three numbers");
  strides_ = get_sizes(node, "strides", axes, 1);
  dilations_ = get_sizes(node, "dilations", axes, 1);
  pads_ = get_sizes(node, "pads", 2 * axes, 0);
  group_ = node.get_int("group");
  throw_if(group_ < 1 || group_ > INT32_MAX, "attribute 'group' must be 1 or more, and less than 2^31");
}

ConvolutionProblem WindowedOperator::window_problem(const Shape& w) const {
  const size_t axes = strides_.size();
  throw_if(w.rank() != axes + 2, "W must have ", axes + 2, " axes to match 'strides', got ", w);
  throw_if(w[0] % group_ != 0, "W ", w, " does not divide into ", group_, " groups");
  ConvolutionProblem p;
  set_channels(p, w);
  p.groups = group_;
  for (size_t i = 0; i < axes; ++i) {
    const size_t axis = 3 - axes + i;
    p.kernel[axis] = w[2 + i];
    p.stride[axis] = strides_[i];
    p.dilation[axis] = dilations_[i];
    p.pad[axis] = pads_[i];
    throw_if(w[2 + i] < 1, "W ", w, " has an empty window");
  }
  p.has_bias = true;
  p.has_residual = tail_.has_residual;
  p.bfloat16 = bfloat16_;
  p.act = tail_.act;
  p.has_slopes = tail_.has_slopes;
  return p;
}

ConvolutionProblem WindowedOperator::static_problem(const std::optional<Shape>& x, const Shape& w) const {
  ConvolutionProblem p = window_problem(w);
  const std::optional<Shape> known = x ? std::optional(nchw_shape(*x)) : std::nullopt;
  set_sizes(p, known && known->rank() == w.rank() ? *known : Shape(w.rank()));
  return p;
}

Shape WindowedOperator::output(const Shapes& inputs) const {
  ConvolutionProblem p = window_problem(inputs[1]);
  Shape y = nchw_shape(inputs[0]);
  set_sizes(p, y);
  y[1] = p.y_channels();
  for (size_t i = 2; i < y.rank(); ++i) y[i] = p.out[i + 3 - y.rank()];
  return y;
}

std::vector<FusedConvOp> FusedConvOp::all() { return with_tails_and_slopes<FusedConvOp>(); }

std::vector<FusedConvOp> FusedConvOp::all_bfloat16() {
  return with_tails<FusedConvOp>({false, true}, all_activations(), true);
}

std::vector<FusedConvOp> FusedConvOp::all_nchw2c(Nchw2cTensors nchw2c) {
  return with_tails<FusedConvOp>({false, true}, all_activations(), true, nchw2c);
}

std::vector<Operand> FusedConvOp::inputs() const {
  std::vector<Operand> operands = WeightedOperator::inputs();
  if (uses_nchw2c()) std::fill(operands.begin() + 1, operands.end(), Operand::kFloat);
  if (uses_nchw2c() && tail_.has_residual) operands.back() = Operand::kAny;
  return operands;
}

std::vector<ElementType> FusedConvOp::output_types() const {
  if (!uses_nchw2c()) return {};
  if (nchw2c_ == Nchw2cTensors::kX) return {ElementType::kFloat};
  return {ElementType::kFloat, ElementType::kBfloat16};
}

Shape FusedConvOp::output_shape(const Shape& y, size_t i) const {
  return i == 0 ? y : Shape{y[0], y[1] / 2, y[2], y[3], 2};
}

Shape FusedConvOp::nchw_shape(const Shape& x) const {
  if (!uses_nchw2c() || x.rank() != 5) return x;
  throw_if(x[4] != 2, "X ", x, " is not in the NCHW2c layout: its last axis must be 2");
  return {x[0], 2 * x[1], x[2], x[3]};
}

void FusedConvOp::read(const Node& node) {
  WindowedOperator::read(node);
  throw_if(uses_nchw2c() && strides_.size() != 2,
           "attribute 'strides' must have two elements for the NCHW2c layout");
}

void FusedConvOp::set_channels(ConvolutionProblem& p, const Shape& w) const {
  p.M = w[0] / group_;
  p.C = w[1];
  throw_if(uses_nchw2c() && p.C == 1 && (p.M != 1 || group_ % 2 != 0), "W ", w, " in ", group_,
           " groups: depthwise in the NCHW2c layout needs one filter for each channel, and an even number of "
           "channels");
}

void FusedConvOp::set_sizes(ConvolutionProblem& p, const Shape& x) const {
  const size_t axes = strides_.size();
  p.N = std::max<int64_t>(x[0], 0);
  for (size_t i = 0; i < axes; ++i) {
    const size_t axis = 3 - axes + i;
    p.in[axis] = std::max<int64_t>(x[2 + i], 0);
    p.out[axis] = p.out_of(axis, pads_[axes + i]);
  }
}

ConvolutionProblem FusedConvOp::problem(const Shapes& inputs) const {
  const Shape x = nchw_shape(inputs[0]), &w = inputs[1];
  ConvolutionProblem p = window_problem(w);
  p.x_nchw2c = uses_nchw2c() && inputs[0].rank() == 5;
  throw_if(p.x_nchw2c && p.C % 2 != 0 && p.C != 1, "the groups of X ", inputs[0], " have ", p.C,
           " channels, which must be even in the NCHW2c layout");
  throw_if(x.rank() != w.rank(), "X ", x, " and W ", w, " differ in their axes");
  throw_if(x[1] != p.x_channels(), "X ", x, " has ", x[1], " channels, W ", w, " in ", group_,
           " groups requires ", p.x_channels());
  set_sizes(p, x);
  for (const int64_t out : p.out) {
    throw_if(out < 0, "X ", x, " with its pads is smaller than the window");
  }
  const size_t axes = strides_.size();
  double padded = static_cast<double>(p.x_channels() + p.y_channels());
  for (size_t i = 0; i < axes; ++i) {
    padded *= static_cast<double>(x[2 + i] + pads_[i] + pads_[axes + i] + strides_[i]);
  }
  throw_if(padded > 0x1p40, "X ", x, " with its pads is too large");
  require_shape("B", inputs[2], {p.y_channels()});
  const Shape y = output(inputs);
  require_slopes(inputs, y);
  p.residual_nchw2c = uses_nchw2c() && tail_.has_residual && inputs[3].rank() == 5;
  if (!p.residual_nchw2c) {
    require_residual(inputs, "Y", y);
  } else if (y[1] % 2 != 0 || (p.C > 1 && p.M % 2 != 0)) {
    throw Error("R ", inputs[3], " is in the NCHW2c layout, but the channels of Y ", y,
                " do not divide into it");
  } else {
    require_same_shape("R", inputs[3], "Y in the NCHW2c layout", output_shape(y, 1));
  }
  return p;
}

void FusedConvOp::infer(const ShapeInference& node) const {
  SymbolicShape x = node.input(0);
  const SymbolicShape w = node.input(1);
  if (uses_nchw2c() && x.size() == 5) x.pop_back();  // NCHW2c: the channels of x are not used below
  if (x.size() < 2 || w.size() != x.size()) return;
  const size_t axes = x.size() - 2;
  const auto strides = find_sizes(node, "strides", axes, 1),
             dilations = find_sizes(node, "dilations", axes, 1), pads = find_sizes(node, "pads", 2 * axes, 0);
  if (!strides || !dilations || !pads) return;
  SymbolicShape y = {x[0], w[0]};
  for (size_t i = 0; i < axes; ++i) {
    const Dim &in = x[2 + i], &kernel = w[2 + i];
    if (!kernel.known() || kernel.value > INT32_MAX) return;
    const int64_t stride = (*strides)[i];
    const int64_t growth = (*pads)[i] + (*pads)[axes + i] - (kernel.value - 1) * (*dilations)[i] - 1;
    if (in.known()) {
      if (in.value + growth < 0) return;
      y.push_back(Dim{(in.value + growth) / stride + 1, ""});
    } else if (in.symbol.empty()) {
      return;
    } else if (stride == 1 && growth == -1) {
      y.push_back(in);
    } else {
      // A symbol means the same size in the entire model, and so does a symbol derived from it.
      y.push_back(
          Dim{-1, "((" + in.symbol + ")+" + std::to_string(growth) + ")/" + std::to_string(stride) + "+1"});
    }
  }
  if (!uses_nchw2c()) return node.set_output(0, y);
  node.set_output(0, y, ElementType::kFloat);
  if (nchw2c_ == Nchw2cTensors::kX || !y[1].known()) return;
  node.set_output(1, {y[0], Dim{y[1].value / 2, ""}, y[2], y[3], Dim{2, ""}}, ElementType::kBfloat16);
}

namespace {

template <class T>
class FusedConvCpu final : public PackedCpuKernel<FusedConvOp, cpu::fused_conv_kernels<T>> {
 public:
  using Base = PackedCpuKernel<FusedConvOp, cpu::fused_conv_kernels<T>>;
  using Base::Base;

 private:
  cpu::FusedConvVectors choose_algorithm(const ConvolutionProblem& p) const override {
    return cpu::fused_conv_choose<T>(p);
  }
  std::string layout(const ConvolutionProblem& p, cpu::FusedConvVectors vectors) const override {
    return std::string(p.bfloat16 ? "bfloat16 " : "") +
           (vectors == cpu::FusedConvVectors::kTiles    ? "tiles"
            : vectors == cpu::FusedConvVectors::kPixels ? "blocks"
                                                        : "panels") +
           " of " + std::to_string(p.groups) + " groups";
  }
  size_t scratch(const ConvolutionProblem& p, cpu::FusedConvVectors vectors, size_t workers) const override {
    if constexpr (std::is_same_v<T, float>) {
      if (this->op_.uses_nchw2c()) return cpu::nchw2c_conv_workspace<T>(p, vectors, workers);
    }
    return Base::scratch(p, vectors, workers);
  }
  void compute(const ConvolutionProblem& p, cpu::FusedConvVectors vectors, const Call& call,
               const void* packed, void* scratch) const override {
    if constexpr (std::is_same_v<T, float>) {
      if (this->op_.uses_nchw2c()) return compute_nchw2c(p, vectors, call, packed, scratch);
    }
    cpu::scheduled_conv(p, vectors, schedule_of(call), data<T>(call, 0), packed, data<T>(call, 2),
                        p.has_residual ? data<T>(call, 3) : nullptr,
                        p.has_slopes ? data<T>(call, this->op_.slopes()) : nullptr, call.outputs[0].as<T>(),
                        *call.parallel, scratch);
  }
  std::shared_ptr<void> schedule(const ConvolutionProblem& p, cpu::FusedConvVectors vectors,
                                 size_t workers) const override {
    return cpu::conv_schedule<T>(p, vectors, workers);
  }
  static cpu::ConvSchedule* schedule_of(const Call& call) {
    return static_cast<cpu::ConvSchedule*>(Base::run_data(call));
  }
  void compute_nchw2c(const ConvolutionProblem& p, cpu::FusedConvVectors vectors, const Call& call,
                      const void* packed, void* scratch) const {
    auto* y = call.outputs[0].as<float>();
    void* nchw2c = this->op_.outputs() > 1 ? call.outputs[1].data : nullptr;
    if (y == nullptr && nchw2c == nullptr) return;
    require_type("X", call.inputs[0], p.x_nchw2c);
    if (p.has_residual) require_type("R", call.inputs[3], p.residual_nchw2c);
    throw_if(nchw2c != nullptr && p.C > 1 && p.M % 2 != 0, "the ", p.M,
             " channels of each group of Y must be even in the NCHW2c layout");
    cpu::nchw2c_conv(p, vectors, schedule_of(call), call.inputs[0].data, packed, data<float>(call, 2),
                     p.has_residual ? call.inputs[3].data : nullptr, y, nchw2c, *call.parallel, scratch);
  }
  static void require_type(const char* name, const Tensor& tensor, bool to_nchw2c) {
    if (tensor.type == (to_nchw2c ? ElementType::kBfloat16 : ElementType::kFloat)) return;
    throw Error(name, " ", tensor.shape, " is of type ", element_type_name(tensor.type),
                ": the NCHW2c layout has bfloat16 of rank 5, NCHW has float");
  }
};

}  // namespace

void add_fused_conv(Kernels& kernels) {
  kernels.add_cpu<FusedConvOp, FusedConvCpu>();
  kernels.add_cpu<FusedConvOp, FusedConvCpu>(Reuse::kNone, {ElementType::kFloat},
                                             FusedConvOp::all_bfloat16());
  kernels.add_cpu<FusedConvOp, FusedConvCpu>(Reuse::kNone, {ElementType::kFloat, ElementType::kBfloat16},
                                             FusedConvOp::all_nchw2c(Nchw2cTensors::kBoth));
  kernels.add_cpu<FusedConvOp, FusedConvCpu>(Reuse::kNone, {ElementType::kBfloat16},
                                             FusedConvOp::all_nchw2c(Nchw2cTensors::kX));
  add_dynamic_quantized_conv(kernels);
}

}  // namespace graphopt
