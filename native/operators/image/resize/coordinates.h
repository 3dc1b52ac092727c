// The position in X of an element of Y along one axis. For the kernels of this folder.
#pragma once

#include "device/platform.h"
#include "operators/image/resize/args.h"

namespace graphopt::hip {

DEVICE float floor_of(float x) {
  const auto down = static_cast<float>(static_cast<int>(x));
  return down > x ? down - 1 : down;
}

// Returns x / step, correctly rounded: the remainder corrects the last bit of x times 1 / step (Markstein, "Computation
// of elementary functions on the IBM RISC System/6000 processor", 1990). Takes a third of a division's instructions.
DEVICE float quotient(float x, const SourceAxis& a) {
  const float q = x * a.inverse;
  return fused_multiply_add(fused_multiply_add(-q, a.step, x), a.inverse, q);
}

// Returns the unrounded position in X of element `at` of Y.
DEVICE float source(const SourceAxis& a, int at) {
  return a.before + quotient((static_cast<float>(at) + a.shift) * a.crop * a.span, a) + a.after;
}

DEVICE int nearest(const SourceAxis& a, float x, Interpolation mode) {
  float at = floor_of(x);
  const float fraction = x - at;
  if (mode == Interpolation::kCeil) {
    at += fraction > 0 ? 1 : 0;
  } else if (mode == Interpolation::kRoundPreferFloor) {
    at += fraction > 0.5f ? 1 : 0;
  } else if (mode == Interpolation::kRoundPreferCeil) {
    at += fraction >= 0.5f ? 1 : 0;
  }
  return max_int(0, min_int(static_cast<int>(at), a.in - 1));
}

}  // namespace graphopt::hip
