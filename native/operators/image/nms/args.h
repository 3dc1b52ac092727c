// Arguments of nms_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kNmsThreads = 256;
constexpr int kNmsBoxes = 4;  // that a work-item looks at in one go

// boxes [B, N, 4], scores [B, C, N]; a work-group for each image and class. left [B, C, N]: scores of the boxes
// that are still candidates, minus infinity for all else. picked [B, C, most] boxes, counts [B, C] of them.
struct NmsSelectArgs : Arguments<5, 80> {
  In boxes, scores;
  Out left, picked, counts;
  Divisor classes;
  int32_t N, most;
  int32_t centered;   // boxes are centres and sizes, else two corners
  int32_t any_score;  // no threshold for scores
  float overlap, score;
};

// rows [all, 3]: image, class and box of each selected box, in this order; number: how many rows there are. A
// work-group for each image and class.
struct NmsRowsArgs : Arguments<4, 56> {
  In picked, counts;
  Out number, rows;
  Divisor classes;
  int32_t pairs, most;
};

}  // namespace graphopt::hip
