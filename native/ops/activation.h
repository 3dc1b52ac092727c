// The activation that an op of ours may end with. Mirrors graphopt/ops/activation.py.
#pragma once

#include "hip/integers.h"

namespace graphopt {

enum class ActivationKind : int32_t {
  kNone,
  kRelu,
  kLeakyRelu,
  kClip,
  kSigmoid,
  kSilu,
  kHardSigmoid,
  kHardSwish,
  kTanh,
  kGelu,
  kGeluTanh,
  kMish,
};

// A POD, so that it can be passed to device kernels by value.
struct Activation {
  ActivationKind kind = ActivationKind::kNone;
  float a = 0.0f;  // LeakyRelu alpha, Clip min, HardSigmoid alpha
  float b = 0.0f;  // Clip max, HardSigmoid beta
};

}  // namespace graphopt
