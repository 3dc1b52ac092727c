// Arguments of scale_shift_*, shift_prelu_* and batch_norm_*.
#pragma once

#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kScaleShiftThreads = 256;  // each work-item processes 16 bytes

struct ScaleShiftArgs : Arguments<5, 88> {
  In x;
  Constant scale, shift;
  In residual;  // may be null
  Out y;
  uint32_t total;  // elements of the launch, which are consecutive planes (n, c)
  Divisor inner, channels;
  uint32_t first_channel;  // channel of the first plane
  int32_t vectors;         // 1: all pointers are multiples of 16
  Activation act;
};

struct ShiftPReluArgs : Arguments<5, 80> {
  In x;
  Constant slope, shift;
  In residual;  // may be null
  Out y;
  uint32_t total;  // as in ScaleShiftArgs
  Divisor inner, channels;
  uint32_t first_channel;
  int32_t vectors;
};

struct BatchNormArgs : Arguments<6, 88> {
  In x;
  Constant scale, shift, mean, variance;
  Out y;
  uint32_t total;  // as in ScaleShiftArgs
  Divisor inner, channels;
  uint32_t first_channel;
  int32_t vectors;
  float epsilon;
};

}  // namespace graphopt::hip
