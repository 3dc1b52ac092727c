// Arguments of pool_* and lrn_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kPoolThreads = 256;
constexpr int kPoolTogether =
    4;  // adjacent outputs of a row that a work-item of the *_together kernels computes

// One spatial axis: output q reads in[q stride + first + t dilation] for t < kernel. An average may count the
// padding up to `last`, which is beyond the axis.
struct PoolAxis {
  int32_t in = 1, kernel = 1, stride = 1, first = 0, dilation = 1, last = 1;
};

enum class PoolMode : int32_t { kMax, kAverage, kAverageWithPadding };

// x [planes, in..]; y [planes, out..] has `total` elements.
struct PoolArgs : Arguments<2, 136> {
  In x;
  Out y;
  uint32_t total, plane;  // elements of Y, and of a plane of X
  Divisor per_plane, per_slice, across;
  PoolAxis axes[3];
  PoolMode mode;
};

// x [images, H, W, channels], two axes; a work-item for each of the `total` packs of channels in the pixels
// of y.
struct PoolChannelsLastArgs : Arguments<2, 112> {
  In x;
  Out y;
  uint32_t total, channels;
  Divisor packs;  // per pixel
  Divisor per_image, across;
  PoolAxis axes[2];
  PoolMode mode;
};

// x and y [images, channels, inner]: x (bias + scale s)^-beta, s the sum of the squares of the channels from
// c - before to c + after; `total` elements.
struct LrnArgs : Arguments<2, 64> {
  In x;
  Out y;
  uint32_t total;
  Divisor inner, channels;
  int32_t before, after;
  float scale, beta, bias;
};

}  // namespace graphopt::hip
