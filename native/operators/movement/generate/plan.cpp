#include "operators/movement/generate/op.h"

namespace graphopt::gpu {
namespace {

constexpr int64_t kGroup = hip::kGenerateThreads * hip::kGenerateElements;

}  // namespace

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
  const char* name = p.type == ElementType::kFloat   ? "range_f32"
                     : p.type == ElementType::kInt16 ? "range_i16"
                     : p.type == ElementType::kInt32 ? "range_i32"
                                                     : "range_i64";
  plan.launch(name, {to_u31(divide_up(p.total, kGroup))}, hip::kGenerateThreads, args);
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
  const char* name = p.bytes == 8   ? "fill_b64"
                     : p.bytes == 4 ? "fill_b32"
                     : p.bytes == 2 ? "fill_b16"
                                    : "fill_b8";
  plan.launch(name, {to_u31(divide_up(p.total * p.bytes, hip::kGenerateThreads * 16))}, hip::kGenerateThreads,
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
  const char* name = p.bytes == 8   ? "trilu_b64"
                     : p.bytes == 4 ? "trilu_b32"
                     : p.bytes == 2 ? "trilu_b16"
                                    : "trilu_b8";
  plan.launch(name, {to_u31(divide_up(total * p.bytes, hip::kGenerateThreads * 16))}, hip::kGenerateThreads,
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
  const char* name = p.bytes == 8   ? "one_hot_b64"
                     : p.bytes == 4 ? "one_hot_b32"
                     : p.bytes == 2 ? "one_hot_b16"
                                    : "one_hot_b8";
  plan.launch(name, {to_u31(divide_up(total * p.bytes, hip::kGenerateThreads * 16))}, hip::kGenerateThreads,
              args);
  return plan;
}

}  // namespace graphopt::gpu
