// How pooling and Resize run on a GPU: operators/pool/kernel.hip, operators/resize/kernel.hip.
#pragma once

#include "device/launch.h"
#include "operators/pool/args.h"
#include "operators/resize/args.h"

namespace graphopt::gpu {

using hip::PoolAxis;
using hip::PoolMode;

// x [planes, in..], y [planes, out..]; what has fewer than three axes has ones in front.
struct PoolProblem {
  int64_t planes = 1, out[kSpatialAxes] = {1, 1, 1};
  PoolAxis axes[kSpatialAxes];
  PoolMode mode = PoolMode::kMax;
};

Plan pool_plan(const PoolProblem& p, bool half);

using hip::Coordinates;
using hip::Interpolation;
using hip::ResizeAxis;

struct ResizeProblem {
  int64_t planes = 1;
  ResizeAxis rows = {1, 1, 1.0f}, columns = {1, 1, 1.0f};
  Coordinates coordinates = Coordinates::kHalfPixel;
  Interpolation how = Interpolation::kRoundPreferFloor;
};

Plan resize_plan(const ResizeProblem& p, bool half);

}  // namespace graphopt::gpu
