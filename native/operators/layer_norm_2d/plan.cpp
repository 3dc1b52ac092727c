#include <algorithm>

#include "operators/layer_norm_2d/args.h"
#include "operators/layer_norm_2d/op.h"

namespace graphopt::gpu {

Plan layer_norm_2d_plan(const LayerNorm2dProblem& p, bool half) {
  Plan plan;
  if (p.N * p.C * p.pixels == 0) return plan;
  hip::LayerNorm2dArgs args = {};
  args.x = input(0);
  args.gamma = input(1);
  args.beta = input(2);
  args.y = output(0);
  args.C = to_u31(p.C);
  args.pixels = to_u31(p.pixels);
  args.epsilon = p.epsilon;
  const uint32_t groups = to_u31(divide_up(p.pixels, hip::kLayerNorm2dPixels));
  to_u31(p.N);
  for (int64_t first = 0; first < p.N; first += kMostGrid) {
    args.first_image = static_cast<uint32_t>(first);
    const auto images = static_cast<uint32_t>(std::min(kMostGrid, p.N - first));
    plan.launch(half ? "layer_norm_2d_f16" : "layer_norm_2d_f32", {groups, images}, hip::kLayerNorm2dThreads,
                args);
  }
  return plan;
}

}  // namespace graphopt::gpu
