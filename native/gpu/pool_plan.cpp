#include "gpu/pool_plan.h"

namespace graphopt::gpu {

Plan pool_plan(const PoolProblem& p, bool half) {
  constexpr int64_t kThreads = 256;  // hip/pool.hip
  Plan plan;
  const int64_t per_slice = p.out[1] * p.out[2], per_plane = p.out[0] * per_slice,
                total = p.planes * per_plane;
  if (total == 0) return plan;
  plan.launches.push_back(
      Launch(half ? "pool_f16" : "pool_f32", to_u31(divide_up(total, kThreads)), 1, 1, kThreads)
          .add(input(0))
          .add(output(0))
          .add(to_u31(total))
          .add(to_u31(int64_t{p.axes[0].in} * p.axes[1].in * p.axes[2].in))
          .add(make_divisor(per_plane))
          .add(make_divisor(per_slice))
          .add(make_divisor(p.out[2]))
          .add(p.axes[0])
          .add(p.axes[1])
          .add(p.axes[2])
          .add(static_cast<int32_t>(p.mode)));
  return plan;
}

Plan resize_plan(const ResizeProblem& p, bool half) {
  constexpr int64_t kThreads = 256;  // hip/resize.hip
  Plan plan;
  const int64_t total = p.planes * p.rows.out * p.columns.out;
  if (total == 0) return plan;
  to_u31(int64_t{p.rows.in} * p.columns.in);
  plan.launches.push_back(
      Launch(half ? "resize_f16" : "resize_f32", to_u31(divide_up(total, kThreads)), 1, 1, kThreads)
          .add(input(0))
          .add(output(0))
          .add(to_u31(total))
          .add(make_divisor(int64_t{p.rows.out} * p.columns.out))
          .add(make_divisor(p.columns.out))
          .add(p.rows)
          .add(p.columns)
          .add(static_cast<int32_t>(p.coordinates))
          .add(static_cast<int32_t>(p.how)));
  return plan;
}

}  // namespace graphopt::gpu
