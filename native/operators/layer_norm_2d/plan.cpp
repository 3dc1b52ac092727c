#include <algorithm>

#include "operators/layer_norm_2d/args.h"
#include "operators/layer_norm_2d/op.h"

namespace graphopt::gpu {

namespace {

const char* kernel_of(const LayerNorm2dProblem& p, bool half) {
  const int64_t of_slice = divide_up(p.C, hip::kLayerNorm2dSlices);
  if (of_slice <= hip::kLayerNorm2dFew) return half ? "layer_norm_2d_few_f16" : "layer_norm_2d_few_f32";
  if (of_slice <= hip::kLayerNorm2dSome) return half ? "layer_norm_2d_some_f16" : "layer_norm_2d_some_f32";
  if (of_slice <= hip::kLayerNorm2dMany) return half ? "layer_norm_2d_many_f16" : "layer_norm_2d_many_f32";
  return half ? "layer_norm_2d_f16" : "layer_norm_2d_f32";
}

}  // namespace

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
    plan.launch(kernel_of(p, half), {groups, images}, hip::kLayerNorm2dThreads, args);
  }
  return plan;
}

}  // namespace graphopt::gpu
