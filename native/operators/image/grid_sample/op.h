// GridSample on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/image/grid_sample/args.h"

namespace graphopt::gpu {

using hip::GridPadding;

struct GridSampleProblem {
  int64_t N = 1, C = 1, points = 1;
  std::vector<int64_t> sizes;  // two or three, outermost axis first
  int taps = 2;                // for each axis: 1 nearest, 2 linear, 4 cubic
  GridPadding padding = GridPadding::kZeros;
  bool corners = false;
};

// Inputs x, grid; output y.
Plan grid_sample_plan(const GridSampleProblem& p, bool half);

}  // namespace graphopt::gpu
