// What conv_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

struct ConvWindow {
  int32_t kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
};

// x [N, groups C, H, W], w [groups M, C, kernel_h, kernel_w], y [N, groups M, OH, OW]; C and M are those of a
// group. A column of the product is one output pixel of one image.
struct ConvArgs {
  static constexpr int kSlots = 4;
  In x, w, bias;  // bias may be null
  Out y;
  int32_t M, C, H, W, groups;
  int32_t packs_of_w;  // the rows of W are whole packs, and begin at multiples of 16 bytes
  int32_t packs_of_y;  // the images of Y
  ConvWindow window;
  uint32_t pixels;
  Divisor per_image, across, taps, kernel_w;
};
static_assert(is_args<ConvArgs>(144), "one layout for all compilers");

}  // namespace graphopt::hip
