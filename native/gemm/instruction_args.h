// Arguments of tile_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

// Y [M, N] = A B^T, A [M, K], B [N, K], one work-group of one wave for each tile of 16 x 16 of Y.
// tile_rows_*: the largest value and the sum of each row of one tile, Y [M, 2].
struct TileArgs : Arguments<3, 40> {
  In a, b;
  Out y;
  int32_t M, N, K;
};

// Y [M, P] = (A B^T) C, C [N, P]; A B^T is rounded to T.
struct TileChainArgs : Arguments<4, 48> {
  In a, b, c;
  Out y;
  int32_t M, N, K, P;
};

}  // namespace graphopt::hip
