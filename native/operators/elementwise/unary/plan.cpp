#include "operators/elementwise/unary/op.h"

namespace graphopt::gpu {

Plan unary_plan(hip::UnaryOp op, float alpha, int64_t total, bool half, bool aligned) {
  Plan plan;
  if (total == 0) return plan;
  hip::UnaryArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(total);
  args.op = op;
  args.alpha = alpha;
  args.vectors = aligned;
  plan.launch_items(float_kernel("unary", half), divide_up(total, half ? 8 : 4), hip::kUnaryThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
