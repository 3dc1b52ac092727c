// What layer_norm_2d_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kLayerNorm2dPixels = 32;  // of a work-group, or pairs of them: neighbours in memory
constexpr int kLayerNorm2dSlices = 8;   // of the channels
// Channels of a slice that its work-item keeps.
constexpr int kLayerNorm2dFew = 16, kLayerNorm2dSome = 32, kLayerNorm2dMany = 96;
constexpr int kLayerNorm2dThreads = kLayerNorm2dPixels * kLayerNorm2dSlices;

// Pixels of an image along x, images along y.
struct LayerNorm2dArgs {
  static constexpr int kSlots = 4;
  In x;
  Constant gamma, beta;
  Out y;
  uint32_t C, pixels;
  uint32_t first_image;
  float epsilon;
};
static_assert(is_args<LayerNorm2dArgs>(48), "one layout for all compilers");

}  // namespace graphopt::hip
