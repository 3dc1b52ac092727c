#include "operators/conv/quantized_conv/op.h"

#include <memory>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// Indices of the inputs.
enum : size_t { kX, kXScale, kXZero, kW, kWScale, kYScale, kYZero, kBias };

}  // namespace

std::vector<QuantizedConvOp> QuantizedConvOp::all() {
  using A = ActivationKind;
  std::vector<QuantizedConvOp> ops;
  for (const A kind : {A::kNone, A::kRelu, A::kClip}) ops.emplace_back(kind);
  return ops;
}

std::string QuantizedConvOp::name() const {
  return std::string("QuantizedConv") + activation_suffix(act_.kind);
}

std::vector<Operand> QuantizedConvOp::inputs() const {
  return {Operand::kTensor, Operand::kFloat, Operand::kTensor, Operand::kAny,
          Operand::kFloat,  Operand::kFloat, Operand::kTensor, Operand::kAny};
}

void QuantizedConvOp::read(const Node& node) {
  act_ = read_activation(act_.kind, node);
  strides_ = get_sizes(node, "strides", 2, 1);
  dilations_ = get_sizes(node, "dilations", 2, 1);
  pads_ = get_sizes(node, "pads", 4, 0);
  group_ = node.get_int("group");
  throw_if(group_ < 1, "attribute 'group' must be 1 or more");
}

ConvolutionProblem QuantizedConvOp::window_problem(const Shape& w) const {
  throw_if(w.rank() != 4, "W must have rank 4, got ", w);
  throw_if(group_ != 1 && (group_ != w[0] || w[1] != 1), "W ", w, " in ", group_,
           " groups: there must be one group, or one for each channel with one filter");
  Problem p;
  p.channels_last = true;
  p.groups = group_;
  p.M = w[0] / group_;
  p.C = w[1];
  p.act = act_;
  p.has_bias = true;
  for (size_t i = 0; i < 2; ++i) {
    throw_if(w[2 + i] < 1, "W ", w, " has an empty window");
    p.kernel[1 + i] = w[2 + i];
    p.stride[1 + i] = strides_[i];
    p.dilation[1 + i] = dilations_[i];
    p.pad[1 + i] = pads_[i];
  }
  return p;
}

ConvolutionProblem QuantizedConvOp::problem(const Shapes& inputs) const {
  const Shape &x = inputs[kX], &w = inputs[kW];
  Problem p = window_problem(w);
  throw_if(x.rank() != 4 || x[3] != p.x_channels(), "X ", x, " and W ", w, " in ", group_,
           " groups have different numbers of channels");
  for (const size_t i : {kXScale, kXZero, kYScale, kYZero}) {
    throw_if(inputs[i].elements() != 1, "scale or zero point of X or Y ", inputs[i],
             " must have one element");
  }
  require_shape("w_scale", inputs[kWScale], {w[0]});
  require_shape("B", inputs[kBias], {w[0]});
  p.N = x[0];
  double padded = static_cast<double>(p.N) * static_cast<double>(p.x_channels() + p.y_channels());
  for (size_t i = 0; i < 2; ++i) {
    p.in[1 + i] = x[1 + i];
    p.out[1 + i] = p.out_of(1 + i, pads_[2 + i]);
    throw_if(p.out[1 + i] < 0, "X ", x, " with its pads is smaller than the window");
    padded *= static_cast<double>(x[1 + i] + pads_[i] + pads_[2 + i] + strides_[i]);
  }
  throw_if(padded > 0x1p40, "X ", x, " with its pads is too large");
  return p;
}

Shape QuantizedConvOp::output(const Shapes& inputs) const {
  const Problem p = problem(inputs);
  return {p.N, p.OH(), p.OW(), p.y_channels()};
}

void QuantizedConvOp::infer(const ShapeInference& node) const {
  const SymbolicShape x = node.input(kX), w = node.input(kW);
  if (x.size() != 4 || w.size() != 4) return;
  const auto strides = find_sizes(node, "strides", 2, 1), dilations = find_sizes(node, "dilations", 2, 1),
             pads = find_sizes(node, "pads", 4, 0);
  if (!strides || !dilations || !pads) return;
  SymbolicShape y = {x[0], Dim{-1, ""}, Dim{-1, ""}, w[0]};
  for (size_t i = 0; i < 2; ++i) {
    const Dim &in = x[1 + i], &kernel = w[2 + i];
    if (!in.known() || !kernel.known() || kernel.value > INT32_MAX) continue;
    const int64_t growth = (*pads)[i] + (*pads)[2 + i] - (kernel.value - 1) * (*dilations)[i] - 1;
    if (in.value + growth >= 0) y[1 + i] = Dim{(in.value + growth) / (*strides)[i] + 1, ""};
  }
  node.set_output(0, y);
}

namespace {

// The type of X and Y is read from the call; the type parameter of add_cpu is ignored.
template <class>
class QuantizedConvCpu final : public CpuKernel<QuantizedConvOp> {
 public:
  using CpuKernel::CpuKernel;

  void prepare(const Node& node) override {
    const auto w = node.constant(kW);
    if (!w || w->type != ElementType::kInt8 || w->shape.rank() != 4) return;
    const Problem p = op_.window_problem(w->shape);
    const bool contiguous = p.dilation[2] == 1;
    packed_.pack(std::string("bytes of ") + std::to_string(p.groups) + " groups, " +
                     (contiguous ? "joined" : "separate") + " columns of int8" + w->shape.text(),
                 w->data, w->bytes(), cpu::quantized_conv_weights<uint8_t>(p), [&](void* packed) {
                   cpu::quantized_conv_prepare<uint8_t>(p, w->as<const int8_t>(), packed);
                 });
  }

  bool run(Call& call) const override {
    const Tensor &w = call.inputs[kW], &bias = call.inputs[kBias];
    throw_if(w.type != ElementType::kInt8, "W must be int8, got ", element_type_name(w.type));
    throw_if(bias.type != ElementType::kInt32, "B must be int32, got ", element_type_name(bias.type));
    const Problem& p = problem(call);
    const cpu::ConvQuantization q = quantization(call);
    const auto [packed, scratch] =
        packed_.of_run(call.workspace, cpu::quantized_conv_weights<uint8_t>(p),
                       [&](void* to) { cpu::quantized_conv_prepare<uint8_t>(p, w.as<const int8_t>(), to); });
    cpu::quantized_conv<uint8_t>(p, q, data<uint8_t>(call, kX), packed, call.outputs[0].as<uint8_t>(),
                                 *call.parallel, scratch);
    return true;
  }

 private:
  size_t workspace(const Problem& p, size_t) const override {
    return std::max(cpu::quantized_conv_workspace<uint8_t>(p, true),
                    cpu::quantized_conv_workspace<uint8_t>(p, false)) +
           packed_.in_workspace(cpu::quantized_conv_weights<uint8_t>(p));
  }
  static cpu::ConvQuantization quantization(const Call& call) {
    const bool is_signed = call.inputs[kX].type == ElementType::kInt8;
    const auto zero = [&](size_t i) {
      const Tensor& t = call.inputs[i];
      return is_signed ? *t.as<const int8_t>() + 128 : static_cast<int32_t>(*t.as<const uint8_t>());
    };
    return {is_signed,
            zero(kXZero),
            zero(kYZero),
            *data<float>(call, kXScale),
            *data<float>(call, kYScale),
            data<float>(call, kWScale),
            data<int32_t>(call, kBias)};
  }

  PackedWeights packed_;
};

}  // namespace

void add_quantized_conv(Kernels& kernels) {
  kernels.add_cpu<QuantizedConvOp, QuantizedConvCpu>(Reuse::kNone, {ElementType::kUint8, ElementType::kInt8});
}

}  // namespace graphopt
