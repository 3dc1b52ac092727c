// What conv_last_* and conv_apart_* take.
#pragma once

#include "device/args.h"
#include "gemm/args.h"
#include "operators/convolution/product_args.h"

namespace graphopt::hip {

constexpr int kConvLastTaps = 15;  // rows and columns of a kernel, at most

// A convolution in channels last, float16, as a product of patches [M, K] and filters [K, N]: M pixels of Y over
// all images, N filters, K taps of C channels, whole packs. x [images, H, W, C], w [N, taps, C], residual and y
// [M, N]. There are `down` rows of `across` tiles.
struct ConvLastArgs {
  static constexpr int kSlots = 6;
  In x, w, bias, residual;  // bias and residual may be null
  Out y;
  Out partial;  // [splits, M, N] where there is more than one split
  int32_t M, N, K, H, W, down;
  Divisor across, channels, kernel_w;
  Divisor per_image, columns;  // pixels of an image of Y, and of a row
  ConvWindow window;
  Splits splits;
  Epilogue epilogue;
};
static_assert(is_args<ConvLastArgs>(208), "one layout for all compilers");

// A transposed one whose windows lie apart, its kernel being its stride: each pixel of X is `window` pixels of Y.
// M pixels of X, K channels, w [K, window_h, window_w, filters], of which a row has N elements; x [M, K], y and
// residual [images, rows window_h, columns window_w, filters].
struct ConvApartArgs {
  static constexpr int kSlots = 5;
  In x, w, bias, residual;  // bias and residual may be null
  Out y;
  int32_t M, N, K, window_h, down;
  Divisor across, filters, window_w, columns;
  Epilogue epilogue;
};
static_assert(is_args<ConvApartArgs>(136), "one layout for all compilers");

}  // namespace graphopt::hip
