#include <algorithm>

#include "operators/softmax/args.h"
#include "operators/softmax/op.h"

namespace graphopt::gpu {

Plan softmax_plan(int64_t rows, int64_t D, bool log, bool half, const DeviceFacts& device) {
  Plan plan;
  if (rows * D == 0) return plan;
  const int64_t threads =
      std::clamp<int64_t>(round_up(divide_up(to_u31(D), 4), device.wave), device.wave, 1024);
  hip::SoftmaxArgs args = {};
  args.D = to_u31(D);
  args.log = log;
  args.threads = static_cast<int32_t>(threads);
  const int64_t bytes = (half ? 2 : 4) * D;
  for_each_launch(rows, threads, [&](int64_t first, uint32_t count) {
    args.x = behind(input(0), first * bytes);
    args.y = behind(output(0), first * bytes);
    plan.launch(half ? "softmax_f16" : "softmax_f32", {count}, static_cast<uint32_t>(threads), args);
  });
  return plan;
}

}  // namespace graphopt::gpu
