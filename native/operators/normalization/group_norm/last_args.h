// What group_norm_last_* take: float16 in channels last.
#pragma once

#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kGroupNormLastThreads = 256;
constexpr int kGroupNormLastSteps = 4;    // loads of a work-item that are on their way at a time
constexpr int kGroupNormLastSharing = 4;  // work-groups of a compute unit
constexpr int kGroupNormLastWidth = 256;  // channels of a work-group, at most
constexpr int kGroupNormLastGroups = 16;  // groups that these are of, at most

// X [images, pixels, channels], cut into slabs of pixels and blocks of channels, which may cut groups. A work-item has a
// pack of channels (8, or one) of every rows-th pixel of its slab.
struct GroupNormTiles {
  uint32_t channels, pixels;  // of an image
  uint32_t slab;              // pixels
  uint32_t rounds;            // so many times kGroupNormLastSteps pixels of a work-item
  uint32_t rows;              // work-items side by side in a column
  Divisor columns;            // packs of a block
  Divisor blocks, slabs;      // of an image
  Divisor group_channels;
};

// One work-group for each block and image, whose only slab it is; blocks cut no groups.
struct GroupNormLastArgs : Arguments<4, 120> {
  In x;
  Constant gamma, beta;
  Out y;
  GroupNormTiles tiles;
  float epsilon;
  Activation act;
};

// One work-group for each block of each slab of each image.
struct GroupNormLastStatsArgs : Arguments<2, 88> {
  In x;
  Out partial;  // [images blocks][groups][slabs][2]: mean and sum of squared deviations
  GroupNormTiles tiles;
  uint32_t groups;  // of a block, at most
};

struct GroupNormLastApplyArgs : Arguments<5, 128> {
  In x;
  Constant gamma, beta;
  In partial;
  Out y;
  GroupNormTiles tiles;
  uint32_t groups;
  float epsilon;
  Activation act;
};

}  // namespace graphopt::hip
