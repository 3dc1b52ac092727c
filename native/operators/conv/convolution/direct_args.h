// Arguments of the convolution_* kernels.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kConvolutionThreads = 128, kConvolutionPixels = 4;
constexpr int kConvolutionFilters = 8;  // filters of a work-item in convolution_8_*

// One spatial axis of X with `in` elements. Pixel q of a launch reads the elements q * step + first + t * tap of X, for
// each t in [0, taps).
struct ConvolutionAxis {
  int32_t in, taps, step, first, tap;
  int32_t filter;  // stride of the taps in W, in elements
  int32_t out;     // stride of the pixels in Y, in elements
};

// All in elements.
struct ConvolutionStrides {
  int32_t filter, channel, group;  // strides in W
  int32_t first_tap, first_pixel;  // offsets in W and Y
};

struct ConvolutionArgs : Arguments<4, 200> {
  In x, w, bias;  // bias may be null
  Out y;
  int32_t M, C, groups;          // filters and channels of one group; number of groups
  uint32_t in_plane, out_plane;  // elements of a plane of X and of Y
  ConvolutionAxis axes[3];
  ConvolutionStrides strides;
  uint32_t pixels;                       // of all images
  Divisor per_image, per_plane, across;  // pixels of an image, of its last two axes, and of its last axis
};

}  // namespace graphopt::hip
