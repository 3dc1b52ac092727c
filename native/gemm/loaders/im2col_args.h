// Arguments of the kernels that load patches with im2col.h: conv_* (without conv_halo_* and conv_disjoint_*)
// and channels_last_conv_*.
#pragma once

#include "device/args.h"
#include "gemm/args.h"

namespace graphopt::hip {

struct ConvWindow {
  int32_t kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
};

// x [N, groups C, H, W], w [groups M, C, kernel_h, kernel_w], y [N, groups M, OH, OW]; C and M are the
// channels of one group. A column of the GEMM is one output pixel of one image.
struct ConvArgs : Arguments<4, 144> {
  In x, w, bias;  // bias may be null
  Out y;
  int32_t M, C, H, W, groups;
  int32_t packs_of_w;  // whether the rows of w consist of packs that start at multiples of 16 bytes
  int32_t packs_of_y;  // whether the images of y consist of such packs
  ConvWindow window;
  uint32_t pixels;
  Divisor per_image, across, taps, kernel_w;
};

constexpr int kChannelsLastConvTaps = 15;  // maximum number of rows and of columns of a kernel

// A float16 channels-last convolution as a GEMM of patches [M, K] and filters [K, N]: M pixels of Y in all
// images, N filters, K = taps * C. C is a multiple of 8, so packs do not cross taps. x [images, H, W, C],
// w [N, taps, C], residual and y [M, N]. The grid has `down` rows of `across` tiles.
struct ChannelsLastConvArgs : Arguments<6, size_with_epilogue(180)> {
  In x, w, bias, residual;  // bias and residual may be null
  Out y;
  Out partial;  // [splits, M, N] if splits > 1
  int32_t M, N, K, H, W, down;
  Divisor across, channels, kernel_w;
  Divisor per_image, columns;  // pixels of an image of Y; pixels of a row of Y
  ConvWindow window;
  Splits splits;
  Epilogue epilogue;
};

}  // namespace graphopt::hip
