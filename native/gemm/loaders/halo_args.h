// What conv_halo_* take.
#pragma once

#include "device/args.h"
#include "gemm/args.h"
#include "gemm/loaders/im2col_args.h"

namespace graphopt::hip {

constexpr int kConvHaloTaps = 32;  // of a kernel, at most: a bit for each
constexpr int kHaloZeros =
    8;  // a power of two: rows of zeros in LDS, for what lies outside of X, one for each row's banks

// So many packs of pixels of the next block a work-item brings to LDS beside a step of so many parts
// (product_steps_ahead).
constexpr int halo_chunks(int threads, int parts) { return threads < 256 || parts < 2 ? parts : 2; }

// A convolution as of ConvLastArgs whose Y has the rows and columns of X and whose windows move by one: the taps of
// consecutive pixels of Y are consecutive pixels of X. `rows`: pixels of X that those of a tile reach. A tile
// begins at pixel `first` of Y or behind it. A step is the channels of one tap that LDS has rows for, steps of one
// block of channels follow each other; `depth` of the splits is that many k of steps.
struct ConvHaloArgs : Arguments<6, with_epilogue(168)> {
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
