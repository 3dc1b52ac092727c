// Where in X an element of Y comes from, along one axis. For the kernels of this room.
#pragma once

#include "device/platform.h"
#include "operators/resize/args.h"

namespace graphopt::hip {

DEVICE float floor_of(float x) {
  const auto down = static_cast<float>(static_cast<int>(x));
  return down > x ? down - 1 : down;
}

// The place in X, not rounded, that element `at` of Y stands for.
DEVICE float source(const ResizeAxis& a, int at, Coordinates coordinates) {
  const auto x = static_cast<float>(at), in = static_cast<float>(a.in), out = static_cast<float>(a.out);
  switch (coordinates) {
    case Coordinates::kPytorchHalfPixel:
      if (a.out <= 1) return 0;
      return (x + 0.5f) / a.scale - 0.5f;
    case Coordinates::kHalfPixel:
      return (x + 0.5f) / a.scale - 0.5f;
    case Coordinates::kHalfPixelSymmetric:
      return in / 2 * (1 - out / (a.scale * in)) + (x + 0.5f) / a.scale - 0.5f;
    case Coordinates::kAlignCorners:
      return a.out <= 1 ? 0 : x * (in - 1) / (out - 1);
    case Coordinates::kCrop:
      if (a.out <= 1) return 0.5f * (a.first + a.last) * (in - 1);
      return a.first * (in - 1) + x * (a.last - a.first) * (in - 1) / (out - 1);
    default:
      return x / a.scale;
  }
}

DEVICE int nearest(const ResizeAxis& a, float x, Interpolation how) {
  float at = floor_of(x);
  const float part = x - at;
  if (how == Interpolation::kCeil) {
    at += part > 0 ? 1 : 0;
  } else if (how == Interpolation::kRoundPreferFloor) {
    at += part > 0.5f ? 1 : 0;
  } else if (how == Interpolation::kRoundPreferCeil) {
    at += part >= 0.5f ? 1 : 0;
  }
  return max_int(0, min_int(static_cast<int>(at), a.in - 1));
}

}  // namespace graphopt::hip
