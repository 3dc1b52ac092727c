// Arguments of layer_norm_2d_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kLayerNorm2dThreads = 256;
// Slices of the channels of a pixel, one for each work-item. layer_norm_2d_max_C keeps up to C channels in registers:
// C / slices for each work-item. The loops over them are unrolled. With 96 channels for each work-item, fetching the
// unrolled code takes longer than running it. layer_norm_2d_max_768 therefore has twice the slices and half the pixels.
constexpr int kLayerNorm2dSlices = 8, kLayerNorm2dMax768Slices = 16;

// The grid has the pixels of an image along x, and images along y.
struct LayerNorm2dArgs : Arguments<4, 48> {
  In x;
  Constant gamma, beta;
  Out y;
  uint32_t C, pixels;
  uint32_t first_image;
  float epsilon;
};

}  // namespace graphopt::hip
