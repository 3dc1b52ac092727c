// Arguments of grid_sample_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kGridSampleThreads = 256;

enum class GridPadding : int32_t { kZeros, kBorder, kReflection };

// x [N, C, sizes], grid [N, points, axes], y [N, C, points]. The first axis of the launch covers the `total` points of
// all images. Each index of its second axis computes `channels_each` channels.
struct GridSampleArgs : Arguments<3, 72> {
  In x, grid;
  Out y;
  uint32_t total;
  Divisor points;  // of an image
  int32_t channels, channels_each;
  int32_t axes;      // 2 or 3
  int32_t sizes[3];  // innermost axis first
  GridPadding padding;
  int32_t corners;  // coordinates -1 and 1 are the centres of the outermost elements; else their outer edges
};

}  // namespace graphopt::hip
