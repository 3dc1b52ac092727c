#include <algorithm>
#include <stdexcept>

#include "operators/sequence/cumsum/args.h"
#include "operators/sequence/cumsum/op.h"

namespace graphopt::gpu {
namespace {

struct CumSumKernels {
  const char *rows, *totals, *lines;  // `totals`: of rows of sums
  int64_t sum_bytes;
};

CumSumKernels kernels_for(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return {"cumsum_f32", "cumsum_f32", "cumsum_lines_f32", 4};
    case ElementType::kHalf:
      return {"cumsum_f16", "cumsum_f32", "cumsum_lines_f16", 4};
    case ElementType::kInt32:
    case ElementType::kUint32:  // sums wrap around, and are the same bits
      return {"cumsum_i32", "cumsum_i64", "cumsum_lines_i32", 8};
    case ElementType::kInt64:
    case ElementType::kUint64:
      return {"cumsum_i64", "cumsum_i64", "cumsum_lines_i64", 8};
    default:
      throw std::invalid_argument("no sums of this type");
  }
}

}  // namespace

Plan cumsum_plan(const CumSumProblem& p, const DeviceFacts& device) {
  Plan plan;
  const auto kernels = kernels_for(p.type);
  const int64_t lines = p.outer * p.inner;
  if (lines * p.size == 0) return plan;
  to_u31(lines * p.size);
  if (p.inner > 1) {
    hip::CumSumLinesArgs args = {};
    args.x = input(0);
    args.y = output(0);
    args.lines = to_u31(lines);
    args.inner = make_divisor(p.inner);
    args.size = to_u31(p.size);
    args.reverse = p.reverse;
    args.exclusive = p.exclusive;
    plan.launch(kernels.lines, {to_u31(divide_up(lines, hip::kCumSumThreads))}, hip::kCumSumThreads, args);
    return plan;
  }
  // Enough parts for four work-groups on each compute unit, of four tiles at least.
  const int64_t tiles = divide_up(p.size, hip::kCumSumTile);
  const int64_t wanted =
      std::clamp<int64_t>(divide_up(4 * device.compute_units, lines), 1, divide_up(tiles, 4));
  const int64_t part = divide_up(tiles, wanted) * hip::kCumSumTile, parts = divide_up(p.size, part);
  hip::CumSumArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.size = to_u31(p.size);
  args.part = to_u31(part);
  args.parts = make_divisor(parts);
  args.reverse = p.reverse;
  args.exclusive = p.exclusive;
  const Grid grid = {to_u31(lines * parts)};
  if (parts > 1) {
    const int64_t bytes = lines * parts * kernels.sum_bytes;
    plan.workspace = {bytes, bytes};
    hip::CumSumArgs totals = args;
    totals.y = no_buffer();
    totals.totals = workspace(0);
    plan.launch(kernels.rows, grid, hip::kCumSumThreads, totals);
    hip::CumSumArgs starts = {};
    starts.x = workspace(0);
    starts.y = workspace(1);
    starts.size = to_u31(parts);
    starts.part = to_u31(round_up(parts, hip::kCumSumTile));
    starts.parts = make_divisor(1);
    starts.exclusive = 1;
    plan.launch(kernels.totals, {to_u31(lines)}, hip::kCumSumThreads, starts);
    args.starts = workspace(1);
  }
  plan.launch(kernels.rows, grid, hip::kCumSumThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
