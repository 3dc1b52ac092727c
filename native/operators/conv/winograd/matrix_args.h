// Arguments of the matrix_filter_*, matrix_pack_* and matrix_gemm_* kernels.
#pragma once

#include "device/args.h"
#include "operators/activation.h"
#include "operators/conv/winograd/args.h"

namespace graphopt::hip {

constexpr int kMatrixConvThreads = 256;  // work-group size of matrix_filter_* and matrix_pack_*
constexpr int kMatrixConvChannels = 32;  // the channels of U and P are padded to a multiple of this

// W [M, C, 3, 3] -> U [rows, 9, channels], padded with zeros; `total` elements.
struct MatrixFilterArgs : Arguments<2, 40> {
  In w;
  Out u;
  int32_t M, C;
  uint32_t total;
  Divisor channels;
};

// X [N, C, H, W] -> P [N, PH, PW, Cp]. One work-item for each pixel and 16 channels; adjacent work-items have adjacent
// pixels.
struct MatrixPackArgs : Arguments<2, 80> {
  In x;
  Out packed;
  PaddedImage image;
  uint32_t total;
  Divisor pixels, across, parts;
};

// P [N, PH, PW, Cp] has `image` elements in an image and `line` elements in a row. Y has `pixels` pixels in all images.
// The number of rows of U is a multiple of the tile's rows.
struct MatrixGemmArgs : Arguments<5, 96> {
  In u, packed, bias, residual;  // residual may be null
  Out y;
  int32_t M, channels;
  uint32_t line, image, pixels;
  Divisor per_image, across;
  Activation act;
};

}  // namespace graphopt::hip
