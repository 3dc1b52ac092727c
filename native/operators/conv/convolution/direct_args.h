// Arguments of the convolution_* kernels.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kConvolutionThreads = 128, kConvolutionPixels = 4;
constexpr int kConvolutionFilters = 8;  // filters of a work-item in convolution_8_*

// One spatial axis: pixel q reads X at q step + first + t tap for its taps t.
struct ConvolutionAxis {
  int32_t in, taps, step, first, tap;
  int32_t filter;  // elements of W between taps
  int32_t out;     // elements of Y between pixels
};

// Distances between filters, channels and groups of W, the offset of the first tap in W, and the offset of the first
// pixel in Y; all in elements.
struct ConvolutionStrides {
  int32_t filter, channel, group, first_tap, first_pixel;
};

struct ConvolutionArgs : Arguments<4, 200> {
  In x, w, bias;  // bias may be null
  Out y;
  int32_t M, C, groups;          // M and C for one group
  uint32_t in_plane, out_plane;  // elements of a plane of X and of Y
  ConvolutionAxis axes[3];
  ConvolutionStrides strides;
  uint32_t pixels;
  Divisor per_image, per_plane, across;
};

}  // namespace graphopt::hip
