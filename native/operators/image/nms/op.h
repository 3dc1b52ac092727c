// NonMaxSuppression on a GPU.
#pragma once

#include <optional>

#include "device/launch.h"
#include "operators/image/nms/args.h"

namespace graphopt::gpu {

struct NmsProblem {
  int64_t B = 1, C = 1, N = 1;  // images, classes, boxes
  int64_t max_boxes = 0;        // max_output_boxes_per_class, at most N
  bool centered = false;        // a box is given by centre and size, else by two corners
  float iou_threshold = 0;
  std::optional<float> score_threshold;
};

// Inputs boxes, scores; outputs the number of rows, and rows of image, class and box. Throws std::invalid_argument
// if there is nothing to select, for example with max_boxes = 0.
Plan nms_plan(const NmsProblem& p);

}  // namespace graphopt::gpu
