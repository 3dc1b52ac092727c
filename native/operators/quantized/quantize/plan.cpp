#include "operators/quantized/quantize/op.h"

namespace graphopt::gpu {

namespace {

const char* kernel_of(const QuantizeProblem& p) {
  const char* number = is_packed(p.number)       ? "b4"
                       : bytes_of(p.number) == 1 ? "b8"
                       : bytes_of(p.number) == 2 ? "b16"
                                                 : "i32";
  return float_kernel(kernel_name({p.back ? "dequantize_" : "quantize_", number}), p.half);
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
  args.is_signed = p.number == ElementType::kInt4 || is_signed(p.number);
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
