// DynamicQuantizedConv[act]: the operator and its CPU kernel.
#include <memory>

#include "operators/conv/fused_conv/cpu.h"
#include "operators/conv/fused_conv/op.h"
#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// Indices of the inputs.
struct DynamicConvInputs {
  enum : size_t { kX, kW, kBias, kScale, kZero };
};

}  // namespace

std::vector<DynamicQuantizedConvOp> DynamicQuantizedConvOp::all() {
  return with_tails<DynamicQuantizedConvOp>({false}, all_activations());
}

std::vector<Operand> DynamicQuantizedConvOp::inputs() const {
  return {Operand::kTensor, Operand::kAny, Operand::kFloat, Operand::kFloat, Operand::kAny};
}

ConvolutionProblem DynamicQuantizedConvOp::problem(const Shapes& inputs) const {
  Problem p = FusedConvOp::problem(inputs);
  p.quantized = true;
  require_shape("w_scale", inputs[DynamicConvInputs::kScale], {p.y_channels()});
  throw_if(inputs[DynamicConvInputs::kZero].elements() != 1, "w_zero_point ",
           inputs[DynamicConvInputs::kZero], " must have one element");
  return p;
}

ConvolutionProblem DynamicQuantizedConvOp::quantized_problem(const std::optional<Shape>& x,
                                                             const Shape& w) const {
  Problem p = static_problem(x, w);
  p.quantized = true;
  return p;
}

namespace {

// The kernel is float only and ignores the type parameter of add_cpu.
template <class>
class DynamicQuantizedConvCpu final : public CpuKernel<DynamicQuantizedConvOp> {
 public:
  using CpuKernel::CpuKernel;

  void prepare(const Node& node) override {
    const auto w = node.constant(DynamicConvInputs::kW), zero = node.constant(DynamicConvInputs::kZero);
    if (!w || !zero || w->type != ElementType::kUint8 || zero->type != ElementType::kUint8) return;
    if (zero->shape.elements() != 1) return;
    packed_for_ = op_.quantized_problem(node.inputs[DynamicConvInputs::kX].shape, w->shape);
    const Problem& p = *packed_for_;
    const auto vectors = cpu::dynamic_conv_choose<float>(p);
    const uint8_t zero_point = *zero->as<const uint8_t>();
    packed_.pack(std::string(vectors == cpu::FusedConvVectors::kPixels ? "blocks" : "panels") + " of " +
                     std::to_string(p.groups) + " groups of 16-bit integers, minus " +
                     std::to_string(zero_point) + ", of uint8" + w->shape.text(),
                 w->data, w->bytes(), cpu::dynamic_conv_weights<float>(p, vectors), [&](void* packed) {
                   cpu::dynamic_conv_prepare<float>(p, vectors, w->as<const uint8_t>(), zero_point, packed);
                 });
  }

  bool run(Call& call) const override {
    const Tensor &w = call.inputs[DynamicConvInputs::kW], &zero = call.inputs[DynamicConvInputs::kZero];
    for (const Tensor* bytes : {&w, &zero}) {
      throw_if(bytes->type != ElementType::kUint8, "W and w_zero_point must be uint8, got ",
               element_type_name(bytes->type));
    }
    const Problem& p = problem(call);
    const cpu::FusedConvVectors vectors = vectors_of(p);
    const auto [packed, scratch] =
        packed_.of_run(call.workspace, cpu::dynamic_conv_weights<float>(p, vectors), [&](void* to) {
          cpu::dynamic_conv_prepare<float>(p, vectors, w.as<const uint8_t>(), *zero.as<const uint8_t>(), to);
        });
    cpu::dynamic_conv<float>(
        p, vectors, static_cast<cpu::ConvSchedule*>(run_data(call)), data<float>(call, DynamicConvInputs::kX),
        packed, data<float>(call, DynamicConvInputs::kScale), data<float>(call, DynamicConvInputs::kBias),
        call.outputs[0].as<float>(), *call.parallel, scratch);
    return true;
  }

 private:
  size_t workspace(const Problem& p, size_t workers) const override {
    const cpu::FusedConvVectors vectors = vectors_of(p);
    return cpu::dynamic_conv_workspace<float>(p, vectors, workers) +
           packed_.in_workspace(cpu::dynamic_conv_weights<float>(p, vectors));
  }
  std::shared_ptr<void> create_run_data(const Problem& p, size_t workers) const override {
    return cpu::dynamic_conv_schedule<float>(p, vectors_of(p), workers);
  }
  // Constant weights were packed for one choice, which every call uses.
  cpu::FusedConvVectors vectors_of(const Problem& p) const {
    return cpu::dynamic_conv_choose<float>(packed_for_ ? *packed_for_ : p);
  }

  std::optional<Problem> packed_for_;
  PackedWeights packed_;
};

}  // namespace

void add_dynamic_quantized_conv(Kernels& kernels) {
  kernels.add_cpu<DynamicQuantizedConvOp, DynamicQuantizedConvCpu>(Reuse::kNone, {ElementType::kFloat});
}

}  // namespace graphopt
