#include <algorithm>
#include <stdexcept>

#include "operators/image/grid_sample/args.h"
#include "operators/image/grid_sample/op.h"

namespace graphopt::gpu {

Plan grid_sample_plan(const GridSampleProblem& p, bool half) {
  const int64_t total = p.N * p.points;
  if (total * p.C == 0) return {};
  hip::GridSampleArgs args = {};
  args.x = input(0);
  args.grid = input(1);
  args.y = output(0);
  args.total = to_u31(total);
  args.points = make_divisor(p.points);
  args.channels = to_i31(p.C);
  args.axes = static_cast<int32_t>(p.sizes.size());
  int64_t volume = 1;
  for (size_t k = 0; k < 3; ++k) {
    args.sizes[k] = k < p.sizes.size() ? to_i31(p.sizes[p.sizes.size() - 1 - k]) : 1;
    volume *= args.sizes[k];
  }
  if (volume == 0) throw std::invalid_argument("the image has no elements");
  to_u31(volume);
  to_u31(p.N * p.C);
  args.padding = p.padding;
  args.corners = p.corners;
  // With few points, the channels of a point are divided among several work-items: about kWorkItems in all.
  constexpr int64_t kWorkItems = 1 << 17;
  int64_t each = std::clamp<int64_t>(total * p.C / kWorkItems, 1, p.C);
  each = std::max(each, divide_up(p.C, kMaxGrid));
  args.channels_each = to_i31(each);
  const char* kernel = float_kernel(p.taps == 1   ? "grid_sample_nearest"
                                    : p.taps == 2 ? "grid_sample_linear"
                                                  : "grid_sample_cubic",
                                    half);
  return one_launch(kernel,
                    Grid{to_u31(divide_up(total, hip::kGridSampleThreads)), to_u31(divide_up(p.C, each))},
                    hip::kGridSampleThreads, args);
}

}  // namespace graphopt::gpu
