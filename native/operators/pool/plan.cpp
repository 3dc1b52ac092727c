#include "operators/pool/op.h"

namespace graphopt::gpu {

Plan pool_plan(const PoolProblem& p, bool half) {
  Plan plan;
  const int64_t per_slice = p.out[1] * p.out[2], per_plane = p.out[0] * per_slice,
                total = p.planes * per_plane;
  if (total == 0) return plan;
  hip::PoolArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(total);
  args.plane = to_u31(int64_t{p.axes[0].in} * p.axes[1].in * p.axes[2].in);
  args.per_plane = make_divisor(per_plane);
  args.per_slice = make_divisor(per_slice);
  args.across = make_divisor(p.out[2]);
  for (size_t d = 0; d < kSpatialAxes; ++d) args.axes[d] = p.axes[d];
  args.mode = p.mode;
  plan.launch(half ? "pool_f16" : "pool_f32", {to_u31(divide_up(total, hip::kPoolThreads))},
              hip::kPoolThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
