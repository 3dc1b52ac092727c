// WinogradConv[Add][act]: a 3x3 convolution with strides, dilations and group 1, NCHW, OIHW weights.
#pragma once

#include <cstdint>

#include "ops/activation.h"

namespace graphopt {

struct ConvProblem {
  int64_t N = 0, C = 0, H = 0, W = 0;  // input
  int64_t M = 0;                       // output channels
  int64_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
  bool has_residual = false;
  Activation act;

  int64_t OH() const { return H + pad_top + pad_bottom - 2; }
  int64_t OW() const { return W + pad_left + pad_right - 2; }
};

}  // namespace graphopt
