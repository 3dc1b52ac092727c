// Arguments of nms_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kNmsThreads = 256;
constexpr int kNmsBoxes = 4;  // boxes that a work-item processes at a time

// boxes [B, N, 4], scores [B, C, N]; a work-group for each image and class. left [B, C, N]: scores of the boxes
// that are still candidates, minus infinity for all others. picked [B, C, most]: indices of the selected boxes;
// counts [B, C]: how many there are.
struct NmsSelectArgs : Arguments<5, 80> {
  In boxes, scores;
  Out left, picked, counts;
  Divisor classes;
  int32_t N, most;
  int32_t centered;   // a box is given by centre and size, else by two corners
  int32_t any_score;  // no threshold for scores
  float overlap, score;
};

// rows [all, 3]: image, class and box of each selected box, in this order; number: the number of rows. One
// work-group for each image and class.
struct NmsRowsArgs : Arguments<4, 56> {
  In picked, counts;
  Out number, rows;
  Divisor classes;
  int32_t pairs, most;
};

}  // namespace graphopt::hip
