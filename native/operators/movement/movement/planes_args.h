// Arguments of transpose_planes_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kPlanesThreads = 256;
// The tile of a work-group: 64 x 64, or 8 x 512 or 512 x 8 for matrices with at most 8 rows or columns.
constexpr int kPlanesTile = 64, kPlanesNarrow = 8, kPlanesWide = 512;

// y [batch, columns, rows] = x [batch, rows, columns]; a work-group for each tile.
struct TransposeArgs : Arguments<2, 56> {
  In x;
  Out y;
  int32_t rows, columns;
  Divisor across, tiles;           // tiles along a row, and of a matrix
  int32_t packs_of_x, packs_of_y;  // 16-byte loads, 16-byte stores
};

}  // namespace graphopt::hip
