// MaxPool, AveragePool and LRN on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/pool/args.h"

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
// Pools two axes in float16 where `channels` lie last; `planes` are images here. `aligned`: both pointers are
// multiples of 16.
Plan pool_channels_last_plan(const PoolProblem& p, int64_t channels, bool aligned);

// Over the channels of x [images, channels, inner].
struct LrnProblem {
  int64_t images = 1, channels = 1, inner = 1;
  int64_t size = 1;  // of the window
  float alpha = 1e-4f, beta = 0.75f, bias = 1;
};

// Throws std::invalid_argument.
Plan lrn_plan(const LrnProblem& p, bool half);

}  // namespace graphopt::gpu
