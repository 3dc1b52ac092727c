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
// Of `channels` in float16 that lie last; `planes` are images here. `aligned`: both pointers are multiples
// of 16.
Plan resize_channels_last_plan(const ResizeProblem& p, int64_t channels, bool aligned);

}  // namespace graphopt::gpu
