// What scale_shift_*, shift_prelu_* and batch_norm_* take.
#pragma once

#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kScaleShiftThreads = 256;  // 16 bytes each

struct ScaleShiftArgs {
  static constexpr int kSlots = 5;
  In x;
  Constant scale, shift;
  In residual;  // may be null
  Out y;
  uint32_t total;  // elements of consecutive planes (n, c)
  Divisor inner, channels;
  uint32_t first_channel;  // that of the first plane
  int32_t vectors;         // all pointers are multiples of 16
  Activation act;
};
static_assert(is_args<ScaleShiftArgs>(88), "one layout for all compilers");

struct ShiftPReluArgs {
  static constexpr int kSlots = 5;
  In x;
  Constant slope, shift;
  In residual;  // may be null
  Out y;
  uint32_t total;  // as in ScaleShiftArgs
  Divisor inner, channels;
  uint32_t first_channel;
  int32_t vectors;
};
static_assert(is_args<ShiftPReluArgs>(80), "one layout for all compilers");

struct BatchNormArgs {
  static constexpr int kSlots = 6;
  In x;
  Constant scale, shift, mean, variance;
  Out y;
  uint32_t total;  // as in ScaleShiftArgs
  Divisor inner, channels;
  uint32_t first_channel;
  int32_t vectors;
  float epsilon;
};
static_assert(is_args<BatchNormArgs>(88), "one layout for all compilers");

}  // namespace graphopt::hip
