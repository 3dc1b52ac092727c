#include <algorithm>

#include "operators/normalization/layer_norm_2d/args.h"
#include "operators/normalization/layer_norm_2d/op.h"

namespace graphopt::gpu {

namespace {

struct Kernel {
  const char* name;
  int slices;
};

Kernel kernel_for(int64_t channels) {
  if (channels <= 128) return {"layer_norm_2d_max_128", hip::kLayerNorm2dSlices};
  if (channels <= 256) return {"layer_norm_2d_max_256", hip::kLayerNorm2dSlices};
  if (channels <= 768) return {"layer_norm_2d_max_768", hip::kLayerNorm2dMax768Slices};
  return {"layer_norm_2d", hip::kLayerNorm2dSlices};
}

}  // namespace

Plan layer_norm_2d_plan(const LayerNorm2dProblem& p, bool half, bool aligned) {
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
  const Kernel chosen = kernel_for(p.C);
  const bool pairs = half && aligned && p.pixels % 2 == 0;  // two pixels per work-item
  const char* kernel = float_kernel(kernel_name({chosen.name, pairs ? "_pairs" : ""}), half);
  const uint32_t groups =
      to_u31(divide_up(p.pixels, hip::kLayerNorm2dThreads / chosen.slices * (pairs ? 2 : 1)));
  to_u31(p.N);
  for (int64_t first = 0; first < p.N; first += kMaxGrid) {
    args.first_image = static_cast<uint32_t>(first);
    const auto images = static_cast<uint32_t>(std::min(kMaxGrid, p.N - first));
    plan.launch(kernel, {groups, images}, hip::kLayerNorm2dThreads, args);
  }
  return plan;
}

}  // namespace graphopt::gpu
