// Arguments of pool_*, max_pool_* and lrn_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kPoolThreads = 256;
constexpr int kPoolOutputsPerItem = 4;  // adjacent outputs of a row that a work-item of *_together_* computes
constexpr int kPoolBytes = 16;          // channels that a work-item of max_pool_channels_last_* computes

// One spatial axis of size `in`: output q reads the positions q * stride + first + t * dilation for t < kernel. `last`
// is the end of the padded axis. kAverageWithPadding counts all positions below `last`, also those in the padding.
struct PoolAxis {
  int32_t in = 1, kernel = 1, stride = 1, first = 0, dilation = 1, last = 1;
};

enum class PoolMode : int32_t { kMax, kAverage, kAverageWithPadding };

// x [planes, in..]; y [planes, out..] has `total` elements.
struct PoolArgs : Arguments<2, 136> {
  In x;
  Out y;
  uint32_t total, plane;                 // elements of Y, and of a plane of X
  Divisor per_plane, per_slice, across;  // elements of y: per plane, per H x W, per row
  PoolAxis axes[3];
  PoolMode mode;
};

// x [images, H, W, channels] with two spatial axes. A work-item computes one of the `total` packs of channels
// of y.
struct PoolChannelsLastArgs : Arguments<2, 112> {
  In x;
  Out y;
  uint32_t total, channels;
  Divisor packs;              // per pixel
  Divisor per_image, across;  // pixels of y: per image, per row
  PoolAxis axes[2];
  PoolMode mode;
};

// y = x (bias + scale s)^-beta for x and y [images, channels, inner] with `total` elements. For channel c, s
// is the sum of the squares of channels c - before to c + after.
struct LrnArgs : Arguments<2, 64> {
  In x;
  Out y;
  uint32_t total;
  Divisor inner, channels;
  int32_t before, after;
  float scale, beta, bias;
};

}  // namespace graphopt::hip
