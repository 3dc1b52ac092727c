#include "operators/quantized/gather_block_quantized/args.h"
#include "operators/quantized/gather_block_quantized/op.h"

namespace graphopt::gpu {

Plan gather_block_quantized_plan(const GatherBlocksProblem& p, bool aligned) {
  const int64_t total = p.outer * p.indices * p.inner, pack = p.half ? 8 : 4;
  if (total == 0) return {};
  to_u31(p.outer * p.size * p.inner);
  hip::GatherBlocksArgs args = {};
  args.x = input(0);
  args.index = input(1);
  args.scale = input(2);
  args.zero = p.has_zero ? input(3) : no_buffer();
  args.y = output(0);
  args.total = to_u31(total);
  args.size = to_u31(p.size);
  args.blocks = to_u31(divide_up(p.q_size, p.block));
  args.zero_row_bytes = to_u31(divide_up(p.zero_row * p.bits, 8));
  args.inner = make_divisor(p.inner);
  args.indices = make_divisor(p.indices);
  args.q_inner = make_divisor(p.q_inner);
  args.q_size = make_divisor(p.q_size);
  args.block = make_divisor(p.block);
  args.zero_row = make_divisor(p.zero_row);
  args.bits = p.bits;
  args.is_signed = p.is_signed;
  args.default_zero = p.default_zero;
  args.narrow = p.narrow;
  args.uses_packs =
      aligned && p.q_inner == 1 && p.inner % pack == 0 && p.q_size % pack == 0 && p.block % pack == 0;
  return one_launch(float_kernel("gather_block_quantized", p.half), divide_up(total, pack),
                    hip::kGatherBlocksThreads, args);
}

}  // namespace graphopt::gpu
