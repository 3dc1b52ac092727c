// Arguments of the depthwise_* kernels.
#pragma once

#include "device/args.h"
#include "gemm/loaders/im2col_args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kDepthwiseThreads = 128;
constexpr int kDepthwiseStrip = 4;  // adjacent pixels in a row of Y that a work-item computes

// x [N, H, W, channels], w [channels, kernel_h, kernel_w], y [N, OH, OW, channels]. A work-item computes 8 channels of
// a strip of y.
struct DepthwiseArgs : Arguments<5, 144> {
  In x;
  Constant w, bias;
  In residual;  // may be null
  Out y;
  uint32_t total, channels;
  Divisor packs, strips, rows;  // packs of a pixel, strips of a row, rows of an image
  int32_t H, W, OW;
  ConvWindow window;
  Activation act;
};

}  // namespace graphopt::hip
