// Arguments of the kernels tile_* in instruction.hip.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

// tile_product_*: Y [M, N] = A B^T, A [M, K], B [N, K]. A work-group has one wave, which computes a 16 x 16 tile of Y.
// tile_rows_*: Y [M, 2] contains the largest value and the sum of each row of A B^T; N is at most 16.
struct TileArgs : Arguments<3, 40> {
  In a, b;
  Out y;
  int32_t M, N, K;
};

// tile_chain_*: Y [M, P] = (A B^T) C, C [N, P]; A B^T is rounded to T.
struct TileChainArgs : Arguments<4, 48> {
  In a, b, c;
  Out y;
  int32_t M, N, K, P;
};

}  // namespace graphopt::hip
