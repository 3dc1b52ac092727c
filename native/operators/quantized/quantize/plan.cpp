#include "operators/quantized/quantize/op.h"

namespace graphopt::gpu {

namespace {

const char* kernel_of(const QuantizeProblem& p) {
  const char* type = is_packed(p.quantized)       ? "b4"
                     : bytes_of(p.quantized) == 1 ? "b8"
                     : bytes_of(p.quantized) == 2 ? "b16"
                                                  : "i32";
  return float_kernel(kernel_name({p.dequantizes ? "dequantize_" : "quantize_", type}), p.half);
}

}  // namespace

Plan quantize_plan(const QuantizeProblem& p, bool aligned) {
  const int64_t total = p.outer * p.size * p.inner;
  if (total == 0) return {};
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
  args.is_signed = p.quantized == ElementType::kInt4 || is_signed(p.quantized);
  args.vectors = aligned;
  args.zero_first = p.zero_first;
  return one_launch(kernel_of(p), divide_up(total, p.half ? 8 : 4), hip::kQuantizeThreads, args);
}

Plan dynamic_scale_plan() {
  hip::DynamicScaleArgs args = {};
  args.least = input(0);
  args.most = input(1);
  args.scale = output(0);
  args.zero = output(1);
  return one_launch("dynamic_scale", Grid{1}, hip::kDynamicThreads, args);
}

}  // namespace graphopt::gpu
