// What swap_planes_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kPlanesThreads = 256;
// Rows and columns of a work-group's part: of matrices with few rows or columns, what they have.
constexpr int kPlanesTile = 64, kPlanesNarrow = 8, kPlanesWide = 512;

// y [batch, columns, rows] = x [batch, rows, columns]; a work-group for each tile.
struct SwapPlanesArgs : Arguments<2, 56> {
  In x;
  Out y;
  int32_t rows, columns;
  Divisor across, tiles;           // tiles along a row, and of a matrix
  int32_t packs_of_x, packs_of_y;  // 16-byte loads, 16-byte stores
};

}  // namespace graphopt::hip
