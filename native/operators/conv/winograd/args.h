// Arguments of the winograd_* and implicit_* kernels. A transformed tile has t positions: 36 for F(4x4, 3x3), and 16
// for F(2x2, 3x3).
#pragma once

#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kWinogradThreads = 256;  // work-group size of the transforms

// The size of an image of X, and the padding at its top and left.
struct PaddedImage {
  int32_t C, H, W, pad_top, pad_left;
};

// W [M, C, 3, 3] -> U [t, rows, columns], padded with zeros.
struct WinogradFilterArgs : Arguments<2, 40> {
  In w;
  Out u;
  int32_t M, C, rows;
  Divisor columns;
};

// The tiles of a launch: `count` tiles from index `first` on. Tiles are ordered by image, row, column.
struct Tiles {
  uint32_t first, count;
  Divisor per_image, across;  // tiles of an image, and of a row of tiles
};

// X [N, C, H, W] -> V [t, C, stride]. One work-item for each channel and tile; adjacent work-items have adjacent tiles.
// `stride` >= tiles.count is a multiple of 4, and columns without a tile become 0.
struct WinogradInputArgs : Arguments<2, 80> {
  In x;
  Out v;
  PaddedImage image;
  Tiles tiles;
  Divisor stride;
};

// Z = U^T V at one of the t positions (block_z). U [t, rows, columns], V [t, C, stride], Z [t, M, stride].
struct WinogradGemmArgs : Arguments<3, 48> {
  In u, v;
  Out z;
  int32_t M, C, rows, columns, stride;
};

// Z [t, M, stride] -> Y [N, M, OH, OW] = act(A^T Z A + bias + residual). One work-item for each channel and tile;
// adjacent work-items have adjacent tiles.
struct WinogradOutputArgs : Arguments<4, 104> {
  In z, bias, residual;  // residual may be null
  Out y;
  int32_t M, OH, OW;
  Tiles tiles;
  Divisor stride;
  int32_t vectors;  // OW is a multiple of kOut = 4, and Y and residual are aligned to 16 bytes
  Activation act;
};

// W [M, C, 3, 3] -> U [rows, columns], the left operand of the implicit GEMM, padded with zeros. Row 9 c + 3 r + s has
// channel c and tap (r, s).
struct ImplicitFilterArgs : Arguments<2, 40> {
  In w;
  Out u;
  int32_t M, depth, rows;
  Divisor columns;
};

// Y = act(U^T patches + bias + residual). Each column is one of the `pixels` output pixels of all images.
struct ImplicitGemmArgs : Arguments<5, 112> {
  In u, x, bias, residual;  // residual may be null
  Out y;
  int32_t M;
  PaddedImage image;
  int32_t rows, columns;
  uint32_t pixels;
  Divisor per_image, across;
  Activation act;
};

}  // namespace graphopt::hip
