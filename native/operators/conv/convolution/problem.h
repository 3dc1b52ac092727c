// The sizes and attributes of a convolution, shared by all operators and libraries that compute convolutions.
#pragma once

#include <array>

#include "device/launch.h"
#include "operators/activation.h"

namespace graphopt {

using gpu::kSpatialAxes;

// Y = act(conv(X, W) + B + R): X [N, groups C, in..], optional bias B [groups M], optional residual R and Y [N, groups
// M, out..]. W is [groups M, C, kernel..], or [groups C, M, kernel..] for a transposed convolution. Unused axes come
// first and have size 1.
struct ConvolutionProblem {
  using Axes = std::array<int64_t, kSpatialAxes>;
  bool transposed = false, has_bias = false;
  bool bfloat16 = false;         // X and W are rounded to bfloat16
  bool quantized = false;        // X is quantized to 8 bits, and the sums are integers
  bool channels_last = false;    // X, Y and W have channels last in memory
  bool x_nchw2c = false;         // X has the NCHW2c bf16 layout: [N, groups C / 2, in.., 2]
  bool residual_nchw2c = false;  // R has the NCHW2c bf16 layout: [N, groups M / 2, out.., 2]
  int64_t N = 1, groups = 1, C = 1, M = 1;
  Axes in = {1, 1, 1}, out = {1, 1, 1}, kernel = {1, 1, 1}, stride = {1, 1, 1}, dilation = {1, 1, 1};
  Axes pad = {0, 0, 0};  // at the start; `out` implies the padding at the end
  bool has_residual = false;
  Activation act;
  bool has_slopes = false;  // PRelu with a slope for each channel of Y replaces act

  // Returns the size of the dilated window along an axis.
  int64_t span(size_t axis) const { return (kernel[axis] - 1) * dilation[axis] + 1; }

  // Returns the size of Y along an axis with this padding at the end; -1 if the padded X is smaller than the window.
  int64_t out_of(size_t axis, int64_t pad_end) const {
    const int64_t free = in[axis] + pad[axis] + pad_end - span(axis);
    return free < 0 ? -1 : free / stride[axis] + 1;
  }

  int64_t x_channels() const { return groups * C; }
  int64_t y_channels() const { return groups * M; }
  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out[0] * out[1] * out[2]; }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }

  // Height and width of X and Y: the last two axes.
  int64_t H() const { return in[1]; }
  int64_t W() const { return in[2]; }
  int64_t OH() const { return out[1]; }
  int64_t OW() const { return out[2]; }
};

}  // namespace graphopt
