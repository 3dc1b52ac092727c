#include "gpu/group_norm_plan.h"

#include <algorithm>

namespace graphopt::gpu {

Plan group_norm_plan(const GroupNormProblem& p, bool half, bool aligned, const DeviceFacts& device) {
  // hip/group_norm.hip
  constexpr int64_t kSmall = 16, kLarge = 40, kThreads = 1024, kSplitThreads = 512;
  Plan plan;
  const int64_t groups = p.N * p.groups, channels = p.C / p.groups, size = channels * p.inner;
  if (groups * size == 0) return plan;
  const int64_t pack = half ? 8 : 4;
  const bool vectors = aligned && size % pack == 0;
  const auto elements = to_u31(size);

  // A work-group for a group reads X once, but leaves the device idle when there are few groups.
  const int64_t part = kSplitThreads * kSmall, parts = divide_up(size, part);
  const bool fills = groups * 4 >= device.compute_units || parts < 4;
  if (vectors && size <= kThreads * kLarge && fills) {
    const bool small = size <= kThreads * kSmall;
    const int64_t threads =
        std::max<int64_t>(device.wave, round_up(divide_up(size, small ? kSmall : kLarge), device.wave));
    const char* name = small ? (half ? "group_norm_small_f16" : "group_norm_small_f32")
                             : (half ? "group_norm_large_f16" : "group_norm_large_f32");
    plan.launches.push_back(Launch(name, to_u31(groups), 1, 1, static_cast<uint32_t>(threads))
                                .add(input(0))
                                .add(input(1))
                                .add(input(2))
                                .add(output(0))
                                .add(elements)
                                .add(static_cast<uint32_t>(channels))
                                .add(make_divisor(p.groups))
                                .add(make_divisor(p.inner))
                                .add(p.epsilon)
                                .add(static_cast<int32_t>(threads))
                                .add(p.act));
    return plan;
  }

  const uint32_t grid = to_u31(groups * parts);
  plan.workspace.push_back(groups * parts * 2 * 4);
  plan.launches.push_back(
      Launch(half ? "group_norm_stats_f16" : "group_norm_stats_f32", grid, 1, 1, kSplitThreads)
          .add(input(0))
          .add(workspace(0))
          .add(elements)
          .add(make_divisor(parts))
          .add(int32_t{vectors}));
  plan.launches.push_back(
      Launch(half ? "group_norm_apply_f16" : "group_norm_apply_f32", grid, 1, 1, kSplitThreads)
          .add(input(0))
          .add(input(1))
          .add(input(2))
          .add(workspace(0))
          .add(output(0))
          .add(elements)
          .add(static_cast<uint32_t>(channels))
          .add(make_divisor(p.groups))
          .add(make_divisor(p.inner))
          .add(make_divisor(parts))
          .add(p.epsilon)
          .add(int32_t{vectors})
          .add(p.act));
  return plan;
}

}  // namespace graphopt::gpu
