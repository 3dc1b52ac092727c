// Arguments of conv_halo_*.
#pragma once

#include "device/args.h"
#include "gemm/args.h"
#include "gemm/loaders/im2col_args.h"

namespace graphopt::hip {

constexpr int kConvHaloTaps = 32;  // maximum number of taps of a kernel: a bit for each
constexpr int kHaloZeros =
    8;  // rows of zeros in LDS for taps outside X, a power of two: a row for each start bank

// Returns the number of packs of pixels of the next block that a work-item copies to LDS during a step of
// `parts` parts (run_steps_ahead).
constexpr int halo_chunks(int threads, int parts) { return threads < 256 || parts < 2 ? parts : 2; }

// A convolution like that of ConvLastArgs with Y of the same height and width as X and stride 1: the taps of
// consecutive pixels of Y are consecutive pixels of X. `rows`: pixels of X that the taps of a tile cover. A
// tile begins at pixel `first` of Y or later. A step has one tap of a block of channels, for which LDS has
// rows; the steps of a block are consecutive. `depth` of the splits counts the k of steps.
struct ConvHaloArgs : Arguments<6, size_with_epilogue(168)> {
  In x, w, bias, residual;  // bias and residual may be null
  Out y;
  Out partial;  // [splits, M, N] where there is more than one split
  int32_t M, N, C, H, W, down, first, rows;
  Divisor across, taps, kernel_w, per_image, columns;
  int32_t kernel_h, top, left;
  Splits splits;
  Epilogue epilogue;
};

}  // namespace graphopt::hip
