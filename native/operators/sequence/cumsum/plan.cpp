#include <algorithm>
#include <stdexcept>

#include "operators/sequence/cumsum/args.h"
#include "operators/sequence/cumsum/op.h"

namespace graphopt::gpu {

Plan cumsum_plan(const CumSumProblem& p, const DeviceFacts& device) {
  Plan plan;
  // Wrapping sums are the same bits for signed and unsigned integers.
  const char* suffix = type_suffix(p.type);
  if (suffix == nullptr) throw std::invalid_argument("CumSum does not support this type");
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
    plan.launch_items(kernel_name({"cumsum_lines", suffix}), lines, hip::kCumSumThreads, args);
    return plan;
  }
  // Divides rows into enough parts for four work-groups on each compute unit, but into at most one part for every four
  // tiles of a row.
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
  const char* rows = kernel_name({"cumsum", suffix});
  const Grid grid = {to_u31(lines * parts)};
  if (parts > 1) {
    const int64_t bytes = lines * parts * (is_float(p.type) ? 4 : 8);
    plan.workspace = {bytes, bytes};
    hip::CumSumArgs totals = args;
    totals.y = no_buffer();
    totals.totals = workspace(0);
    plan.launch(rows, grid, hip::kCumSumThreads, totals);
    hip::CumSumArgs starts = {};
    starts.x = workspace(0);
    starts.y = workspace(1);
    starts.size = to_u31(parts);
    starts.part = to_u31(round_up(parts, hip::kCumSumTile));
    starts.parts = make_divisor(1);
    starts.exclusive = 1;
    plan.launch(is_float(p.type) ? "cumsum_f32" : "cumsum_i64", {to_u31(lines)}, hip::kCumSumThreads, starts);
    args.starts = workspace(1);
  }
  plan.launch(rows, grid, hip::kCumSumThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
