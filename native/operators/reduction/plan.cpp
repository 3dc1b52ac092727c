#include "operators/reduction/args.h"
#include "operators/reduction/op.h"

namespace graphopt::gpu {

Plan reduce_plan(int64_t outer, int64_t R, int64_t inner, Reduction how, bool half) {
  Plan plan;
  if (outer * inner == 0) return plan;
  const bool mean = how == Reduction::kMean;
  const Reduction sum = mean ? Reduction::kSum : how;
  const float scale = mean ? 1.0f / static_cast<float>(R) : 1.0f;
  if (inner == 1) {
    hip::ReduceRowsArgs args = {};
    args.R = to_u31(R);
    args.how = sum;
    args.scale = scale;
    const int64_t element = half ? 2 : 4;
    for_each_launch(outer, hip::kReduceThreads, [&](int64_t first, uint32_t count) {
      args.x = behind(input(0), first * R * element);
      args.y = behind(output(0), first * element);
      plan.launch(half ? "reduce_rows_f16" : "reduce_rows_f32", {count}, hip::kReduceThreads, args);
    });
    return plan;
  }
  hip::ReduceColumnsArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(outer * inner);
  args.R = to_u31(R);
  args.inner = make_divisor(inner);
  args.how = sum;
  args.scale = scale;
  plan.launch(half ? "reduce_columns_f16" : "reduce_columns_f32",
              {to_u31(divide_up(args.total, hip::kReduceThreads))}, hip::kReduceThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
