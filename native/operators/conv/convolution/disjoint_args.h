// What conv_disjoint_* take.
#pragma once

#include "device/args.h"
#include "gemm/args.h"

namespace graphopt::hip {

// A transposed convolution with separate windows: its kernel is its stride, and each pixel of X is `window` pixels of Y.
// M pixels of X, K channels, w [K, window_h, window_w, filters], of which a row has N elements; x [M, K], y and
// residual [images, rows window_h, columns window_w, filters].
struct ConvDisjointArgs : Arguments<5, with_epilogue(108)> {
  In x, w, bias, residual;  // bias and residual may be null
  Out y;
  int32_t M, N, K, window_h, down;
  Divisor across, filters, window_w, columns;
  Epilogue epilogue;
};

}  // namespace graphopt::hip
