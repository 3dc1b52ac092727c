// Arguments of the depthwise_* kernels.
#pragma once

#include "device/args.h"
#include "gemm/loaders/im2col_args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kDepthwiseThreads = 128;
constexpr int kDepthwiseStrip = 4;  // adjacent pixels of a row of Y in the strip of a work-item
// The strip of depthwise_*_long_f16. A longer strip loads fewer pixels of X for each pixel of Y.
constexpr int kDepthwiseLongStrip = 8;
constexpr int kDepthwisePairs = 64;  // maximum pairs of channels of a work-group

// x [N, H, W, channels], w [channels, kernel_h, kernel_w], y [N, OH, OW, channels]. depthwise_f16 and depthwise_1_f16
// support any window: depthwise_f16 with vectors of 8 channels, depthwise_1_f16 with vectors of one channel. Their
// `total` is the number of work-items: strips times vectors. For the other kernels `total` is the number of strips. A
// work-group computes `strips_per_group` strips for a block of channels; the second axis of the grid counts blocks.
struct DepthwiseArgs : Arguments<5, 152> {
  In x;
  Constant w, bias;
  In residual;  // may be null
  Out y;
  uint32_t total, channels, strips_per_group, unused;
  // depthwise_f16, depthwise_1_f16: vectors of channels in a pixel; others: pairs of channels in a block. If the number
  // of channels is not a multiple of 8, the last block can have fewer pairs.
  Divisor block;
  Divisor strips, rows;  // strips of a row, rows of an image
  int32_t H, W, OW;
  ConvWindow window;
  Activation act;
};

}  // namespace graphopt::hip
