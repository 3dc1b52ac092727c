// What FusedConv computes: Y = act(conv(X, W) + B + R), of X and W rounded to bfloat16 where asked.
#pragma once

#include <array>
#include <cstdint>

#include "operators/activation.h"

namespace graphopt {

// Three axes; those in front that there are not have size, kernel, stride and dilation 1.
struct FusedConvProblem {
  using Axes = std::array<int64_t, 3>;
  int64_t N = 0, C = 0, M = 0, group = 1;
  Axes in = {1, 1, 1}, kernel = {1, 1, 1}, stride = {1, 1, 1}, dilation = {1, 1, 1};
  Axes pad_begin = {0, 0, 0}, pad_end = {0, 0, 0};
  bool has_residual = false;
  bool bfloat16 = false;
  Activation act;

  // Elements of Y along an axis; negative where the window does not fit.
  int64_t out(size_t axis) const {
    const int64_t room = in[axis] + pad_begin[axis] + pad_end[axis] - (kernel[axis] - 1) * dilation[axis] - 1;
    return room < 0 ? -1 : room / stride[axis] + 1;
  }
  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out(0) * out(1) * out(2); }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
};

}  // namespace graphopt
