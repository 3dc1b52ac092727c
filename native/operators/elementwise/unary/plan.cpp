#include "operators/elementwise/unary/op.h"

namespace graphopt::gpu {

Plan unary_plan(hip::UnaryOp op, float alpha, int64_t total, bool half, bool aligned) {
  if (total == 0) return {};
  hip::UnaryArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(total);
  args.op = op;
  args.alpha = alpha;
  args.vectors = aligned;
  return one_launch(float_kernel("unary", half), divide_up(total, half ? 8 : 4), hip::kUnaryThreads, args);
}

}  // namespace graphopt::gpu
