// Arguments of conv_halo_*.
#pragma once

#include "device/args.h"
#include "gemm/args.h"
#include "gemm/loaders/im2col_args.h"

namespace graphopt::hip {

constexpr int kConvHaloTaps = 32;  // maximum number of taps of a kernel; a mask has a bit for each
// Number of rows of zeros in LDS for taps outside X: one for each bank where a row can start; a power of two.
constexpr int kHaloZeros = 8;

// Returns the number of packs of pixels that a work-item copies to LDS during one step, for the next block of channels.
// A step has `parts` parts (run_steps_ahead).
constexpr int halo_chunks(int threads, int parts) { return threads < 256 || parts < 2 ? parts : 2; }

// Like ChannelsLastConvArgs, for a convolution with stride 1 and with Y of the same height and width as X. A tap
// therefore reads consecutive pixels of X for consecutive pixels of Y. `rows`: number of pixels of X that the taps of a
// tile cover; each has a row in LDS. `first`: the first pixel of Y in the tiles of this launch. A step multiplies one
// tap of one block of channels. The steps of a block are consecutive and share its pixels in LDS. Splits::depth is the
// number of steps times the channels of a block.
struct ConvHaloArgs : Arguments<6, size_with_epilogue(168)> {
  In x, w, bias, residual;  // bias and residual may be null
  Out y;
  Out partial;  // [splits, M, N] if there is more than one split
  int32_t M, N, C, H, W, down, first, rows;
  Divisor across, taps, kernel_w, per_image, columns;
  int32_t kernel_h, top, left;
  Splits splits;
  Epilogue epilogue;
};

}  // namespace graphopt::hip
