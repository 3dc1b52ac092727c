// How pooling and Resize run on a GPU: hip/pool.hip, hip/resize.hip.
#pragma once

#include "gpu/launch.h"

namespace graphopt::gpu {

// Mirrors hip::PoolAxis.
struct PoolAxis {
  int32_t in = 1, kernel = 1, stride = 1, first = 0, dilation = 1, last = 1;
};

enum class PoolMode : int32_t { kMax, kAverage, kAverageWithPadding };

// x [planes, in..], y [planes, out..]; what has fewer than three axes has ones in front.
struct PoolProblem {
  int64_t planes = 1, out[kSpatialAxes] = {1, 1, 1};
  PoolAxis axes[kSpatialAxes];
  PoolMode mode = PoolMode::kMax;
};

Plan pool_plan(const PoolProblem& p, bool half);

// Mirror hip::Coordinates, hip::Nearest and hip::ResizeAxis.
enum class Coordinates : int32_t { kHalfPixel, kPytorchHalfPixel, kAsymmetric, kAlignCorners };
enum class Interpolation : int32_t { kRoundPreferFloor, kRoundPreferCeil, kFloor, kCeil, kLinear };
struct ResizeAxis {
  int32_t in, out;
  float scale;
};

struct ResizeProblem {
  int64_t planes = 1;
  ResizeAxis rows = {1, 1, 1.0f}, columns = {1, 1, 1.0f};
  Coordinates coordinates = Coordinates::kHalfPixel;
  Interpolation how = Interpolation::kRoundPreferFloor;
};

Plan resize_plan(const ResizeProblem& p, bool half);

}  // namespace graphopt::gpu
