#include <algorithm>

#include "operators/group_norm/args.h"
#include "operators/group_norm/op.h"

namespace graphopt::gpu {

Plan group_norm_plan(const GroupNormProblem& p, bool half, bool aligned, const DeviceFacts& device) {
  constexpr int64_t kSmall = hip::kGroupNormSmallElements, kLarge = hip::kGroupNormLargeElements,
                    kThreads = hip::kGroupNormMostThreads;
  Plan plan;
  const int64_t groups = p.N * p.groups, channels = p.C / p.groups, size = channels * p.inner;
  if (groups * size == 0) return plan;
  const int64_t pack = half ? 8 : 4;
  const bool vectors = aligned && size % pack == 0;
  const auto elements = to_u31(size);

  // A work-group for a group reads X once, but leaves the device idle when there are few groups.
  const int64_t parts = divide_up(size, hip::kGroupNormPart);
  const bool fills = groups * 4 >= device.compute_units || parts < 4;
  if (vectors && size <= kThreads * kLarge && fills) {
    const bool small = size <= kThreads * kSmall;
    const int64_t threads =
        std::max<int64_t>(device.wave, round_up(divide_up(size, small ? kSmall : kLarge), device.wave));
    const char* name = small ? (half ? "group_norm_small_f16" : "group_norm_small_f32")
                             : (half ? "group_norm_large_f16" : "group_norm_large_f32");
    hip::GroupNormArgs args = {};
    args.x = input(0);
    args.gamma = input(1);
    args.beta = input(2);
    args.y = output(0);
    args.size = elements;
    args.group_channels = static_cast<uint32_t>(channels);
    args.groups = make_divisor(p.groups);
    args.inner = make_divisor(p.inner);
    args.epsilon = p.epsilon;
    args.threads = static_cast<int32_t>(threads);
    args.act = p.act;
    plan.launch(name, {to_u31(groups)}, static_cast<uint32_t>(threads), args);
    return plan;
  }

  const uint32_t grid = to_u31(groups * parts);
  plan.workspace.push_back(groups * parts * 2 * 4);
  hip::GroupNormStatsArgs stats = {};
  stats.x = input(0);
  stats.partial = workspace(0);
  stats.size = elements;
  stats.parts = make_divisor(parts);
  stats.vectors = vectors;
  plan.launch(half ? "group_norm_stats_f16" : "group_norm_stats_f32", {grid}, hip::kGroupNormSplitThreads,
              stats);
  hip::GroupNormApplyArgs apply = {};
  apply.x = input(0);
  apply.gamma = input(1);
  apply.beta = input(2);
  apply.partial = workspace(0);
  apply.y = output(0);
  apply.size = elements;
  apply.group_channels = static_cast<uint32_t>(channels);
  apply.groups = make_divisor(p.groups);
  apply.inner = make_divisor(p.inner);
  apply.parts = make_divisor(parts);
  apply.epsilon = p.epsilon;
  apply.vectors = vectors;
  apply.act = p.act;
  plan.launch(half ? "group_norm_apply_f16" : "group_norm_apply_f32", {grid}, hip::kGroupNormSplitThreads,
              apply);
  return plan;
}

}  // namespace graphopt::gpu
