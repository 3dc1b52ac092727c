#include "operators/quantized/quantize/op.h"

namespace graphopt::gpu {

namespace {

const char* kernel_of(const QuantizeProblem& p) {
  struct Names {
    const char *quantize[2], *dequantize[2];  // of float and float16
  };
  static constexpr Names k4 = {{"quantize_b4_f32", "quantize_b4_f16"},
                               {"dequantize_b4_f32", "dequantize_b4_f16"}};
  static constexpr Names k8 = {{"quantize_b8_f32", "quantize_b8_f16"},
                               {"dequantize_b8_f32", "dequantize_b8_f16"}};
  static constexpr Names k16 = {{"quantize_b16_f32", "quantize_b16_f16"},
                                {"dequantize_b16_f32", "dequantize_b16_f16"}};
  static constexpr Names k32 = {{}, {"dequantize_i32_f32", "dequantize_i32_f16"}};
  const Names& names = is_packed(p.number)       ? k4
                       : bytes_of(p.number) == 1 ? k8
                       : bytes_of(p.number) == 2 ? k16
                                                 : k32;
  return (p.back ? names.dequantize : names.quantize)[p.half];
}

}  // namespace

Plan quantize_plan(const QuantizeProblem& p, bool aligned) {
  Plan plan;
  const int64_t total = p.outer * p.size * p.inner;
  if (total == 0) return plan;
  hip::QuantizeArgs args = {};
  args.x = input(0);
  args.scale = input(1);
  args.zero = p.zero ? input(2) : no_buffer();
  args.y = output(0);
  args.total = to_u31(total);
  args.scales = p.scales;
  args.inner = make_divisor(p.inner);
  args.size = make_divisor(p.size);
  args.block = make_divisor(p.block);
  args.blocks = to_u31(divide_up(p.size, p.block));
  args.is_signed = p.number == ElementType::kInt4 || is_signed(p.number);
  args.vectors = aligned;
  args.zero_first = p.zero_first;
  const int64_t group = hip::kQuantizeThreads * (p.half ? 8 : 4);
  plan.launch(kernel_of(p), {to_u31(divide_up(total, group))}, hip::kQuantizeThreads, args);
  return plan;
}

Plan dynamic_scale_plan() {
  Plan plan;
  hip::DynamicScaleArgs args = {};
  args.least = input(0);
  args.most = input(1);
  args.scale = output(0);
  args.zero = output(1);
  plan.launch("dynamic_scale", {1}, hip::kDynamicThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
