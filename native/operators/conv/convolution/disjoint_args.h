// Arguments of the conv_disjoint_* kernels.
#pragma once

#include "device/args.h"
#include "gemm/args.h"

namespace graphopt::hip {

// A transposed convolution with disjoint windows: the kernel size equals the stride, and each pixel of X determines one
// window of Y. x [M, K] has M pixels of K channels. w is [K, window_h, window_w, filters], and N = window_h * window_w
// * filters. y and residual are [images, rows * window_h, columns * window_w, filters].
struct ConvDisjointArgs : Arguments<5, size_with_epilogue(108)> {
  In x, w, bias, residual;  // bias and residual may be null
  Out y;
  int32_t M, N, K, window_h, down;
  Divisor across, filters, window_w, columns;
  Epilogue epilogue;
};

}  // namespace graphopt::hip
