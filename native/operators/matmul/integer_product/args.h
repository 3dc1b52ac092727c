// What integer_product_*, integer_window_product and scale_products take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kIntegerThreads = 256;
constexpr int kIntegerTile = 64;   // rows and columns of Y of a work-group
constexpr int kIntegerDepth = 16;  // of a step along K

// Y [z, M, N] = (L [.., M, K] - its zero) (R [.., K, N] - its zero) + bias, where the operands and the bias, of each
// matrix, have any strides. The grid's third axis has as many matrices as it may, from `first` on.
struct IntegerProductArgs : Arguments<6, 192> {
  In left, right, left_zero, right_zero, bias;  // the last three may be null
  Out y;
  int32_t M, N, K;
  int32_t left_signed, right_signed;  // of 8-bit numbers
  int32_t left_zero_step;             // 1: one for each row
  int32_t right_zero_step;            // 1: one for each column
  int32_t left_m, left_k, right_k, right_n, bias_m, bias_n;
  uint32_t first;
  Axes batch;
  Strides left_batch, right_batch;
};

// The same with windows of X [N, groups C, in..] as R, pixels of Y as columns, and filters W [groups M, C, taps..] as L:
// z counts images and their groups, and the bias has a number for each filter.
struct IntegerWindowArgs : Arguments<6, 200> {
  In left, right, left_zero, right_zero, bias;
  Out y;
  int32_t M, N, K, C;
  int32_t left_signed, right_signed;
  int32_t left_zero_step;
  Divisor groups;
  int32_t in[3], step[3], pad[3], tap[3];  // of an axis: its size, stride, padding in front and dilation
  Divisor rows, columns;                   // of Y: the sizes of its second and third axis
  Divisor taps, taps_b, taps_c;            // of a window, of its second and of its third axis
};

constexpr int kScaleThreads = 256;

// Y of `total` elements, [.., M, N], from products x: in 8 bits or, where there is no scale of Y, in float.
struct ScaleProductsArgs : Arguments<7, 104> {
  In x, left_scale, right_scale, y_scale, y_zero,
      bias;  // bias: float [N] or null; the scale of Y and y_zero, too
  Out y;
  uint32_t total;
  Divisor M, N;
  int32_t left_step, right_step;  // 1: a scale for each row, for each column
  int32_t is_signed;              // of Y
  float alpha;                    // of the products
  int32_t unused;
};

}  // namespace graphopt::hip
