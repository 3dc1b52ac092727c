#include "operators/quantize/op.h"

namespace graphopt::gpu {

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
  args.is_signed = p.number == ElementType::kInt8;
  args.vectors = aligned;
  const char* name = nullptr;
  if (!p.back) {
    name = p.half ? "quantize_f16" : "quantize_f32";
  } else if (p.number == ElementType::kInt32) {
    name = p.half ? "dequantize_i32_f16" : "dequantize_i32_f32";
  } else {
    name = p.half ? "dequantize_b8_f16" : "dequantize_b8_f32";
  }
  const int64_t group = hip::kQuantizeThreads * (p.half ? 8 : 4);
  plan.launch(name, {to_u31(divide_up(total, group))}, hip::kQuantizeThreads, args);
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
