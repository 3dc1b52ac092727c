#include "operators/movement/generate/op.h"

namespace graphopt::gpu {
Plan range_plan(const RangeProblem& p) {
  if (p.total == 0) return {};
  hip::RangeArgs args = {};
  args.y = output(0);
  args.total = to_u31(p.total);
  args.start = p.start;
  args.step = p.step;
  args.integer_start = p.integer_start;
  args.integer_step = p.integer_step;
  return one_launch(kernel_name({"range", type_suffix(p.type)}), divide_up(p.total, hip::kGenerateElements),
                    hip::kGenerateThreads, args);
}

Plan fill_plan(const FillProblem& p, bool aligned) {
  if (p.total == 0) return {};
  hip::FillArgs args = {};
  args.y = output(0);
  args.bits = p.bits;
  args.total = to_u31(p.total);
  args.vectors = aligned;
  return one_launch(bits_kernel("fill", p.bytes), divide_up(p.total * p.bytes, 16), hip::kGenerateThreads,
                    args);
}

Plan trilu_plan(const TriluProblem& p, bool aligned) {
  const int64_t total = p.batch * p.rows * p.columns;
  if (total == 0) return {};
  hip::TriluArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(total);
  args.columns = make_divisor(p.columns);
  args.rows = make_divisor(p.rows);
  args.upper = p.upper;
  args.k = p.k;
  args.vectors = aligned;
  return one_launch(bits_kernel("trilu", p.bytes), divide_up(total * p.bytes, 16), hip::kGenerateThreads,
                    args);
}

Plan one_hot_plan(const OneHotProblem& p, bool aligned) {
  const int64_t total = p.outer * p.depth * p.inner;
  if (total == 0) return {};
  hip::OneHotArgs args = {};
  args.index = input(0);
  args.values = input(1);
  args.y = output(0);
  args.total = to_u31(total);
  args.inner = make_divisor(p.inner);
  args.depth = make_divisor(p.depth);
  args.type = p.type;
  args.vectors = aligned;
  return one_launch(bits_kernel("one_hot", p.bytes), divide_up(total * p.bytes, 16), hip::kGenerateThreads,
                    args);
}

}  // namespace graphopt::gpu
