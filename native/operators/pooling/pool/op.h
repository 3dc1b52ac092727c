// MaxPool, AveragePool and LRN on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/pooling/pool/args.h"
#include "operators/tensor.h"
#include "operators/window.h"

namespace graphopt::gpu {

using hip::PoolAxis;
using hip::PoolMode;

// x [planes, in..], y [planes, out..]; with fewer than three spatial axes, the first ones have size 1.
struct PoolProblem {
  int64_t planes = 1, out[kSpatialAxes] = {1, 1, 1};
  PoolAxis axes[kSpatialAxes];
  PoolMode mode = PoolMode::kMax;
};

// `type`: float, float16; for kMax also int8 and uint8. `aligned`: both addresses are multiples of 16 bytes.
Plan pool_plan(const PoolProblem& p, ElementType type, bool aligned);
// Pools two axes of images in channels last. `type`: float16; for kMax also int8 and uint8. `planes`: number of images.
Plan pool_channels_last_plan(const PoolProblem& p, ElementType type, int64_t channels, bool aligned);

// LRN over the channels of x [images, channels, inner].
struct LrnProblem {
  int64_t images = 1, channels = 1, inner = 1;
  int64_t size = 1;  // window size
  float alpha = 1e-4f, beta = 0.75f, bias = 1;
};

// Throws std::invalid_argument if a size does not fit in 31 bits.
Plan lrn_plan(const LrnProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu

namespace graphopt {

// The windows of a node of MaxPool or AveragePool.
class PoolWindows {
 public:
  PoolWindows(const Node& node, bool average);
  // Returns the problem for x [N, C, ..], or [N, .., C] if `channels_last`, and sets the shape of y. Throws Error for
  // invalid shapes.
  gpu::PoolProblem problem(const Shape& x, bool channels_last, Shape& y) const;
  // Returns true if one window covers all of x [N, C, ..], without padding.
  bool cover(const Shape& x) const;

 private:
  int64_t output_size(int64_t in, int64_t stride, int64_t span, const Window::Padding& pad) const;

  Window window_;
  bool ceil_;
  gpu::PoolMode mode_ = gpu::PoolMode::kMax;
};

// Returns the reason to refuse a pooling node because of its windows, or "". Does not check the element type.
std::string refuse_pool_windows(const Node& node);

}  // namespace graphopt
