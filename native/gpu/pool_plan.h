// How pooling and Resize run on a GPU: hip/pool.hip, hip/resize.hip.
#pragma once

#include "gpu/launch.h"

namespace graphopt::gpu {

// Mirrors hip::PoolWindow.
struct PoolWindow {
  int32_t kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
  int32_t bottom, right;
};

enum class PoolMode : int32_t { kMax, kAverage, kAverageWithPadding };

// x [planes, H, W], y [planes, OH, OW].
struct PoolProblem {
  int64_t planes = 1, H = 1, W = 1, OH = 1, OW = 1;
  PoolWindow window = {1, 1, 1, 1, 0, 0, 1, 1, 0, 0};
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
