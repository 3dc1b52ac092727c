// Arguments of resize_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kResizeThreads = 256;

enum class Interpolation : int32_t { kRoundPreferFloor, kRoundPreferCeil, kFloor, kCeil, kLinear, kCubic };

// An axis with `in` elements in X and `out` in Y. For all coordinate transformation modes, element `at` of Y has the
// position before + (at + shift) * crop * span / step + after in X. `crop` is the fraction of X that tf_crop_and_resize
// reads, else 1.
struct SourceAxis {
  int32_t in, out;
  float shift, crop, span, step, before, after;
  float inverse;  // 1 / step
};

// x [planes, H, W]. A work-item computes a pack of adjacent columns (16 bytes) in `rows_each` rows of y. Each plane of
// y has `down` x `across` work-items; all planes have `items`.
struct ResizeArgs : Arguments<2, 128> {
  In x;
  Out y;
  uint32_t items;
  Divisor across, down;
  SourceAxis rows, columns;
  Interpolation mode;
  int32_t rows_each;
  int32_t uses_packs;  // each pack of columns is written with one store
};

// x [images, H, W, channels]. A work-item computes one of the `total` packs of channels of y.
struct ResizeChannelsLastArgs : Arguments<2, 136> {
  In x;
  Out y;
  uint32_t total, channels;
  Divisor packs;              // per pixel
  Divisor per_image, across;  // pixels of y: per image, per row
  SourceAxis rows, columns;
  Interpolation mode;
};

// Resizes one axis: x [outer, in, inner] to y [outer, out, inner]. A work-item computes one of the `total`
// elements of y.
struct ResizeOneArgs : Arguments<2, 120> {
  In x;
  Out y;
  uint64_t outside;  // the bits of an element outside of x, if `crops`
  uint32_t total;
  Divisor inner, out;
  SourceAxis axis;
  Interpolation mode;
  float cubic;          // the coefficient a of the cubic
  float narrow;         // multiplies distances in x: the scale if antialias widens the weights, else 1
  int32_t reach;        // number of elements of x on each side of a position that have weights
  int32_t inside_only;  // only elements of x have weights; else the edge elements are repeated beyond x
  int32_t crops;        // positions outside of x have the value `outside`
  int32_t normalized;   // weights are divided by their sum
  int32_t unused;
};

}  // namespace graphopt::hip
