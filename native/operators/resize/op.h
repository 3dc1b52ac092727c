// Resize on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/resize/args.h"

namespace graphopt::gpu {

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
