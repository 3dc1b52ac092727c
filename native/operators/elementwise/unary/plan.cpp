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
  const int64_t group = hip::kUnaryThreads * (half ? 8 : 4);
  plan.launch(half ? "unary_f16" : "unary_f32", {to_u31(divide_up(total, group))}, hip::kUnaryThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
