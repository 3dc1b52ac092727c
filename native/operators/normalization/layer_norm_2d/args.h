// Arguments of layer_norm_2d_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kLayerNorm2dThreads = 256;
// Channels of a slice that a work-item keeps in registers. The loops over them are unrolled: with 96 channels,
// fetching the code took longer than running it. Kernels with kLayerNorm2dMany channels therefore have twice the
// slices and half the pixels.
constexpr int kLayerNorm2dFew = 16, kLayerNorm2dSome = 32, kLayerNorm2dMany = 48;
constexpr int kLayerNorm2dSlices = 8, kLayerNorm2dManySlices = 16;

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
