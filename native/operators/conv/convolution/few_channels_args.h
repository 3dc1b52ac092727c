// Arguments of the few_channels_* kernels.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kFewChannelsThreads = 128;
constexpr int kFewChannels = 16;       // maximum number of input channels, and of filters
constexpr int kFewChannelsVector = 4;  // pixels of a work-item of few_channels_4_*

// x [N, C, plane], w [M, C], y [N, M, plane].
struct FewChannelsArgs : Arguments<4, 64> {
  In x;
  Constant w;
  In bias;  // may be null
  Out y;
  int32_t M, C;
  uint32_t total;   // vectors of pixels in all images
  Divisor vectors;  // vectors of a plane
  uint32_t plane, unused;
};

}  // namespace graphopt::hip
