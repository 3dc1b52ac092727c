#include <stdexcept>

#include "operators/image/nms/args.h"
#include "operators/image/nms/op.h"

namespace graphopt::gpu {

Plan nms_plan(const NmsProblem& p) {
  Plan plan;
  const int64_t pairs = p.B * p.C;
  if (pairs * p.N * p.max_boxes == 0) throw std::invalid_argument("there is nothing to select");
  to_u31(3 * pairs * p.max_boxes);
  to_u31(4 * p.B * p.N);
  hip::NmsSelectArgs select = {};
  select.boxes = input(0);
  select.scores = input(1);
  select.remaining = workspace(0);
  select.picked = workspace(1);
  select.counts = workspace(2);
  select.classes = make_divisor(p.C);
  select.N = to_i31(p.N);
  select.max_boxes = to_i31(p.max_boxes);
  select.centered = p.centered;
  select.any_score = !p.score_threshold;
  select.iou_threshold = p.iou_threshold;
  select.score_threshold = p.score_threshold.value_or(0.0f);
  plan.launch("nms_select", {to_u31(pairs)}, hip::kNmsThreads, select);
  hip::NmsRowsArgs rows = {};
  rows.picked = workspace(1);
  rows.counts = workspace(2);
  rows.row_count = output(0);
  rows.rows = output(1);
  rows.classes = make_divisor(p.C);
  rows.pairs = to_i31(pairs);
  rows.max_boxes = to_i31(p.max_boxes);
  plan.launch("nms_rows", {to_u31(pairs)}, hip::kNmsThreads, rows);
  plan.workspace = {4 * pairs * p.N, 4 * pairs * p.max_boxes, 4 * pairs};
  return plan;
}

}  // namespace graphopt::gpu
