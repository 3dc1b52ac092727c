// What resize_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kResizeThreads = 256;
constexpr int kResizeColumns = 4;  // neighbours in a row of y, of a work-item

enum class Coordinates : int32_t {
  kHalfPixel,
  kPytorchHalfPixel,
  kAsymmetric,
  kAlignCorners,
  kHalfPixelSymmetric,
  kCrop,  // of tf_crop_and_resize: what lies outside of X has a value of its own
};
enum class Interpolation : int32_t { kRoundPreferFloor, kRoundPreferCeil, kFloor, kCeil, kLinear, kCubic };

struct ResizeAxis {
  int32_t in, out;
  float scale;        // out / in as the node says
  float first, last;  // of kCrop: the ends of the crop, 0 and 1 those of X
};

// x [planes, H, W], a work-item for kResizeColumns columns of `rows_each` rows of y: `across` of them side by
// side and `down` one below the other in a plane, and `items` in all.
struct ResizeArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  uint32_t items;
  Divisor across, down;
  ResizeAxis rows, columns;
  Coordinates coordinates;
  Interpolation how;
  int32_t rows_each;
  int32_t packs;  // all columns of a work-item are written at once
  int32_t unused;
};
static_assert(is_args<ResizeArgs>(104), "one layout for all compilers");

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
static_assert(is_args<ResizeChannelsLastArgs>(112), "one layout for all compilers");

// One axis: y [outer, out, inner] of x [outer, in, inner], a work-item for each of the `total` elements of y.
struct ResizeOneArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  uint64_t outside;  // kCrop: the bits of an element where there is no x
  uint32_t total;
  Divisor inner, out;
  ResizeAxis axis;
  Coordinates coordinates;
  Interpolation how;
  float cubic;    // the coefficient a of the cubic
  float narrow;   // antialias: how much further apart the elements of y are than those of x, as 1 / that
  int32_t reach;  // elements of x on either side that take part
  int32_t inside_only;  // only those that there are; else those at the edges stand for what lies beyond
  int32_t normalized;   // weights are divided by their sum
};
static_assert(is_args<ResizeOneArgs>(104), "one layout for all compilers");

}  // namespace graphopt::hip
