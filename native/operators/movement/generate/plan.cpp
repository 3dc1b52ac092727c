#include "operators/movement/generate/op.h"

namespace graphopt::gpu {
Plan range_plan(const RangeProblem& p) {
  Plan plan;
  if (p.total == 0) return plan;
  hip::RangeArgs args = {};
  args.y = output(0);
  args.total = to_u31(p.total);
  args.start = p.start;
  args.step = p.step;
  args.whole_start = p.whole_start;
  args.whole_step = p.whole_step;
  plan.launch_items(kernel_name({"range", type_suffix(p.type)}), divide_up(p.total, hip::kGenerateElements),
                    hip::kGenerateThreads, args);
  return plan;
}

Plan fill_plan(const FillProblem& p, bool aligned) {
  Plan plan;
  if (p.total == 0) return plan;
  hip::FillArgs args = {};
  args.y = output(0);
  args.bits = p.bits;
  args.total = to_u31(p.total);
  args.vectors = aligned;
  plan.launch_items(bits_kernel("fill", p.bytes), divide_up(p.total * p.bytes, 16), hip::kGenerateThreads,
                    args);
  return plan;
}

Plan trilu_plan(const TriluProblem& p, bool aligned) {
  Plan plan;
  const int64_t total = p.batch * p.rows * p.columns;
  if (total == 0) return plan;
  hip::TriluArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(total);
  args.columns = make_divisor(p.columns);
  args.rows = make_divisor(p.rows);
  args.upper = p.upper;
  args.k = p.k;
  args.vectors = aligned;
  plan.launch_items(bits_kernel("trilu", p.bytes), divide_up(total * p.bytes, 16), hip::kGenerateThreads,
                    args);
  return plan;
}

Plan one_hot_plan(const OneHotProblem& p, bool aligned) {
  Plan plan;
  const int64_t total = p.outer * p.depth * p.inner;
  if (total == 0) return plan;
  hip::OneHotArgs args = {};
  args.index = input(0);
  args.values = input(1);
  args.y = output(0);
  args.total = to_u31(total);
  args.inner = make_divisor(p.inner);
  args.depth = make_divisor(p.depth);
  args.type = p.type;
  args.vectors = aligned;
  plan.launch_items(bits_kernel("one_hot", p.bytes), divide_up(total * p.bytes, 16), hip::kGenerateThreads,
                    args);
  return plan;
}

}  // namespace graphopt::gpu
