// NonMaxSuppression. The selection determines the size of the output, so it runs as the counter (kernel.h). After it,
// `plan` only adds a copy of the selected rows.
#include "operators/image/nms/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// Inputs: boxes [B, N, 4], scores [B, C, N], the maximum number of boxes of a class, the IoU threshold, the score
// threshold.
gpu::NmsProblem problem_of(const Call& call, bool centered) {
  const Shape &boxes = call.input(0).shape, &scores = call.input(1).shape;
  throw_if(boxes.rank() != 3 || scores.rank() != 3 || boxes[2] != 4 || boxes[0] != scores[0] ||
               boxes[1] != scores[2],
           "boxes of ", boxes, " and scores of ", scores, " do not fit");
  gpu::NmsProblem p;
  p.B = scores[0];
  p.C = scores[1];
  p.N = scores[2];
  p.centered = centered;
  if (call.has_input(2)) {
    p.max_boxes = std::clamp<int64_t>(call.integer(2, "max_output_boxes_per_class"), 0, p.N);
  }
  p.iou_threshold = call.number(3, 0.0f);
  throw_if(!(p.iou_threshold >= 0 && p.iou_threshold <= 1), "iou_threshold must be between 0 and 1");
  if (call.has_input(4)) p.score_threshold = call.number(4, 0.0f);
  return p;
}

CountedPlanner plan_non_max_suppression(const Node& node) {
  const bool centered = node.get_bool("center_point_box");
  const auto select = [=](Call& call, Program& program) {
    const gpu::NmsProblem p = problem_of(call, centered);
    const int64_t rows = p.B * p.C * p.max_boxes;
    const Ref row_count = set_output(call, 0, Shape{rows > 0 ? 1 : 0}, ElementType::kInt64),
              selected = set_output(call, 1, Shape{rows, 3}, ElementType::kInt64);
    if (rows > 0) {
      program.launch(gpu::nms_plan(p), {Ref::input(0), Ref::input(1)}, {row_count, selected});
    } else {
      program.reserve(1);  // the runtime cannot provide 0 bytes of memory
    }
  };
  // The last two inputs are the outputs of the selection.
  const auto plan = [](Call& call, Program& program) {
    const size_t selected = call.inputs.size() - 1;
    const std::vector<int64_t> row_count = call.integers(selected - 1);
    const int64_t rows = row_count.empty() ? 0 : row_count[0];
    const Ref y = set_output(call, 0, Shape{rows, 3}, ElementType::kInt64);
    program.copy(y, Ref::input(selected), rows * 3 * 8);
  };
  return {select, plan};
}

std::string refuse_nms(const Node& node) {
  for (const size_t i : {size_t{0}, size_t{1}}) {
    if (node.inputs[i].type != ElementType::kFloat) return "boxes or scores are not float";
  }
  return "";
}

}  // namespace

void add_nms(Kernels& kernels) {
  kernels.add_onnx("NonMaxSuppression", 10, 11, plan_non_max_suppression)
      .refused(refuse_nms)
      .reads_on_host({2, 3, 4})
      .with_counter();
}

}  // namespace graphopt
