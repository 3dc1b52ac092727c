// Arguments of resize_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kResizeThreads = 256;

enum class Interpolation : int32_t { kRoundPreferFloor, kRoundPreferCeil, kFloor, kCeil, kLinear, kCubic };

// An axis with `in` elements in X and `out` in Y. For all coordinate transformation modes, element `at` of Y has the
// position before + (at + shift) * part * span / step + after in X.
struct SourceAxis {
  int32_t in, out;
  float shift, part, span, step, before, after;
  float inverse;  // 1 / step
};

// x [planes, H, W], a work-item for a pack of columns of `rows_each` rows of y: `across` of them in a row and
// `down` in a column of a plane, `items` in total.
struct ResizeArgs : Arguments<2, 128> {
  In x;
  Out y;
  uint32_t items;
  Divisor across, down;
  SourceAxis rows, columns;
  Interpolation how;
  int32_t rows_each;
  int32_t packs;  // all columns of a work-item are written at once
};

// x [images, H, W, channels]; a work-item for each of the `total` packs of channels in the pixels of y.
struct ResizeChannelsLastArgs : Arguments<2, 136> {
  In x;
  Out y;
  uint32_t total, channels;
  Divisor packs;  // per pixel
  Divisor per_image, across;
  SourceAxis rows, columns;
  Interpolation how;
};

// One axis: y [outer, out, inner] of x [outer, in, inner], a work-item for each of the `total` elements of y.
struct ResizeOneArgs : Arguments<2, 120> {
  In x;
  Out y;
  uint64_t outside;  // the bits of an element outside of x, if `crops`
  uint32_t total;
  Divisor inner, out;
  SourceAxis axis;
  Interpolation how;
  float cubic;          // the coefficient a of the cubic
  float narrow;         // antialias: 1 / (distance of the elements of y / distance of those of x)
  int32_t reach;        // number of elements of x on either side that have weights
  int32_t inside_only;  // only elements of x count; else the edge elements are repeated beyond x
  int32_t crops;        // positions outside of x have the value `outside`
  int32_t normalized;   // weights are divided by their sum
  int32_t unused;
};

}  // namespace graphopt::hip
