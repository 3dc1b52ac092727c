// What resize_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kResizeThreads = 256;

enum class Coordinates : int32_t { kHalfPixel, kPytorchHalfPixel, kAsymmetric, kAlignCorners };
enum class Interpolation : int32_t { kRoundPreferFloor, kRoundPreferCeil, kFloor, kCeil, kLinear };

struct ResizeAxis {
  int32_t in, out;
  float scale;  // out / in as the node says, or 1 divided by (out - 1) / (in - 1) for kAlignCorners
};

// x [planes, H, W], a work-item for each of the `total` elements of y.
struct ResizeArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  uint32_t total;
  Divisor per_plane, across;
  ResizeAxis rows, columns;
  Coordinates coordinates;
  Interpolation how;
};
static_assert(is_args<ResizeArgs>(80), "one layout for all compilers");

// x [images, H, W, channels]; a work-item for each pack of channels of a pixel of y, of which there are
// `total`.
struct ResizeChannelsLastArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  uint32_t total, channels;
  Divisor packs;  // of a pixel
  Divisor per_image, across;
  ResizeAxis rows, columns;
  Coordinates coordinates;
  Interpolation how;
};
static_assert(is_args<ResizeChannelsLastArgs>(96), "one layout for all compilers");

}  // namespace graphopt::hip
