#include <algorithm>

#include "operators/normalization/layer_norm_2d/args.h"
#include "operators/normalization/layer_norm_2d/op.h"

namespace graphopt::gpu {

namespace {

struct Kernels {
  const char *f32, *f16, *pairs;  // pairs of pixels, in float16
  int slices;
};

Kernels kernels_of(const LayerNorm2dProblem& p) {
  constexpr int kSlices = hip::kLayerNorm2dSlices, kMany = hip::kLayerNorm2dManySlices;
  if (p.C <= kSlices * hip::kLayerNorm2dFew) {
    return {"layer_norm_2d_few_f32", "layer_norm_2d_few_f16", "layer_norm_2d_few_pairs_f16", kSlices};
  }
  if (p.C <= kSlices * hip::kLayerNorm2dSome) {
    return {"layer_norm_2d_some_f32", "layer_norm_2d_some_f16", "layer_norm_2d_some_pairs_f16", kSlices};
  }
  if (p.C <= kMany * hip::kLayerNorm2dMany) {
    return {"layer_norm_2d_many_f32", "layer_norm_2d_many_f16", "layer_norm_2d_many_pairs_f16", kMany};
  }
  return {"layer_norm_2d_f32", "layer_norm_2d_f16", "layer_norm_2d_pairs_f16", kSlices};
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
  const Kernels kernels = kernels_of(p);
  const bool pairs = half && aligned && p.pixels % 2 == 0;
  const char* kernel = pairs ? kernels.pairs : half ? kernels.f16 : kernels.f32;
  const uint32_t groups =
      to_u31(divide_up(p.pixels, hip::kLayerNorm2dThreads / kernels.slices * (pairs ? 2 : 1)));
  to_u31(p.N);
  for (int64_t first = 0; first < p.N; first += kMostGrid) {
    args.first_image = static_cast<uint32_t>(first);
    const auto images = static_cast<uint32_t>(std::min(kMostGrid, p.N - first));
    plan.launch(kernel, {groups, images}, hip::kLayerNorm2dThreads, args);
  }
  return plan;
}

}  // namespace graphopt::gpu
