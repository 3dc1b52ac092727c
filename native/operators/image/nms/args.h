// Arguments of nms_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kNmsThreads = 256;
constexpr int kNmsBoxes = 4;  // boxes that a work-item processes at a time

// boxes [B, N, 4], scores [B, C, N] for B images, C classes and N boxes. One work-group for each image and class.
// remaining [B, C, N]: scores of the boxes that are still candidates, minus infinity for all others. picked [B, C,
// max_boxes]: indices of the selected boxes. counts [B, C]: numbers of selected boxes.
struct NmsSelectArgs : Arguments<5, 80> {
  In boxes, scores;
  Out remaining, picked, counts;
  Divisor classes;
  int32_t N, max_boxes;
  int32_t centered;   // a box is given by centre and size, else by two corners
  int32_t any_score;  // there is no score threshold
  float iou_threshold, score_threshold;
};

// rows [row_count, 3]: image, class and box of each selected box, in this order. One work-group for each pair of an
// image and a class.
struct NmsRowsArgs : Arguments<4, 56> {
  In picked, counts;
  Out row_count, rows;
  Divisor classes;
  int32_t pairs, max_boxes;
};

}  // namespace graphopt::hip
