// What a convolution is, for all operators and libraries that compute one.
#pragma once

#include "device/launch.h"
#include "operators/activation.h"

namespace graphopt {

using gpu::kSpatialAxes;

// Y = act(conv(X, W) + B + R): X [N, groups C, in..], B [groups M] if any, R and Y [N, groups M, out..]; W is
// [groups M, C, kernel..], that of a transposed convolution [groups C, M, kernel..]. What has fewer axes has
// ones in front.
struct ConvolutionProblem {
  bool transposed = false, has_bias = false;
  bool channels_last = false;  // of X, Y and W, as they lie in memory
  int64_t N = 1, groups = 1, C = 1, M = 1;
  int64_t in[kSpatialAxes] = {1, 1, 1}, out[kSpatialAxes] = {1, 1, 1}, kernel[kSpatialAxes] = {1, 1, 1},
          stride[kSpatialAxes] = {1, 1, 1}, dilation[kSpatialAxes] = {1, 1, 1};
  int64_t pad[kSpatialAxes] = {0, 0, 0};  // at the beginning; at the end is what `out` leaves
  bool has_residual = false;
  Activation act;

  // Elements that the taps of an axis cover, of X, or of Y when it is transposed.
  int64_t span(size_t axis) const { return (kernel[axis] - 1) * dilation[axis] + 1; }

  // Of images, which have the last two axes.
  int64_t H() const { return in[1]; }
  int64_t W() const { return in[2]; }
  int64_t OH() const { return out[1]; }
  int64_t OW() const { return out[2]; }
};

}  // namespace graphopt
