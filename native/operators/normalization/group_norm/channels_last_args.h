// Arguments of group_norm_channels_last_*: float16 in channels last.
#pragma once

#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kGroupNormChannelsLastThreads = 256;
constexpr int kGroupNormChannelsLastSteps = 4;    // concurrent loads of a work-item
constexpr int kGroupNormChannelsLastSharing = 4;  // work-groups that share a compute unit
constexpr int kGroupNormChannelsLastWidth = 256;  // maximum number of channels per work-group
constexpr int kGroupNormChannelsLastGroups = 16;  // maximum number of groups of these channels

// X [images, pixels, channels] is divided into slabs of pixels and blocks of channels, which may divide groups. A
// work-item processes a pack of channels (8 or one) of every rows-th pixel of its slab.
struct GroupNormTiles {
  uint32_t channels, pixels;  // per image
  uint32_t slab;              // pixels per slab
  uint32_t rounds;            // rounds of a work-item, each of kGroupNormChannelsLastSteps pixels
  uint32_t rows;              // work-items per column of packs
  Divisor columns;            // packs per block
  Divisor blocks, slabs;      // per image
  Divisor group_channels;
};

// One work-group for each block and image: a slab has all pixels, and each block consists of complete groups.
struct GroupNormChannelsLastArgs : Arguments<4, 120> {
  In x;
  Constant gamma, beta;
  Out y;
  GroupNormTiles tiles;
  float epsilon;
  Activation act;
};

// One work-group for each block of each slab of each image.
struct GroupNormChannelsLastStatsArgs : Arguments<2, 88> {
  In x;
  Out partial;  // [images blocks][groups][slabs][2]: mean and sum of squared deviations
  GroupNormTiles tiles;
  uint32_t groups;  // maximum number of groups in a block
};

struct GroupNormChannelsLastApplyArgs : Arguments<5, 128> {
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
