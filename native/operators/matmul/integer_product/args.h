// Arguments of integer_product_*, integer_window_product and scale_products.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kIntegerThreads = 256;
constexpr int kIntegerTile = 64;   // rows and columns of Y that a work-group computes
constexpr int kIntegerDepth = 16;  // depth of a step along K

// Y [z, M, N] = (L [.., M, K] - left_zero) (R [.., K, N] - right_zero) + bias. The operands and the bias have any
// strides. The grid's third axis counts matrices from `first` on; a launch has at most kMaxGrid of them.
struct IntegerProductArgs : Arguments<6, 192> {
  In left, right, left_zero, right_zero, bias;  // the last three may be null
  Out y;
  int32_t M, N, K;
  int32_t left_signed, right_signed;  // for 8-bit elements
  int32_t left_zero_step;             // 1: a zero point for each row; 0: one for all
  int32_t right_zero_step;            // 1: a zero point for each column; 0: one for all
  int32_t left_m, left_k, right_k, right_n, bias_m, bias_n;
  uint32_t first;
  Axes batch;
  Strides left_batch, right_batch;
};

// The same for convolutions. L is W [groups M, C, taps..]. R consists of the windows of X [N, groups C, in..]:
// a column of R is the window of a pixel of Y. z counts images and their groups. The bias has one element for
// each filter.
struct IntegerWindowArgs : Arguments<6, 200> {
  In left, right, left_zero, right_zero, bias;
  Out y;
  int32_t M, N, K, C;
  int32_t left_signed, right_signed;
  int32_t left_zero_step;
  Divisor groups;
  int32_t in[3], step[3], pad[3], tap[3];  // for each axis: size, stride, padding before it, dilation
  Divisor rows, columns;                   // sizes of the second and third spatial axis of Y
  Divisor taps, taps_b, taps_c;            // taps of a window, and of its second and third axis
};

constexpr int kScaleThreads = 256;

// Computes Y [.., M, N] with `total` elements from the sums x. Y is 8-bit, or float if y_scale is null.
struct ScaleProductsArgs : Arguments<7, 104> {
  In x, left_scale, right_scale, y_scale, y_zero,
      bias;  // bias: float [N]; y_scale, y_zero and bias may be null
  Out y;
  uint32_t total;
  Divisor M, N;
  int32_t left_step, right_step;  // 1: a scale for each row, for each column; 0: one for all
  int32_t is_signed;              // whether the elements of Y are signed
  float alpha;                    // factor of the sums
  int32_t unused;
};

}  // namespace graphopt::hip
