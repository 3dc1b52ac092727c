#include <algorithm>

#include "operators/softmax/args.h"
#include "operators/softmax/op.h"

namespace graphopt::gpu {

namespace {

void add_columns(Plan& plan, int64_t outer, int64_t D, int64_t inner, bool log, bool half) {
  constexpr int64_t kThreads = hip::kSoftmaxColumns * hip::kSoftmaxParts;
  const int64_t groups = divide_up(inner, hip::kSoftmaxColumns), bytes = (half ? 2 : 4) * D * inner;
  hip::SoftmaxColumnsArgs args = {};
  args.groups = make_divisor(groups);
  args.D = to_u31(D);
  args.inner = to_u31(inner);
  args.log = log;
  // Launches begin with a whole one of `outer`.
  const int64_t most = std::max<int64_t>(1, INT32_MAX / (groups * kThreads));
  for (int64_t first = 0; first < outer; first += most) {
    args.x = behind(input(0), first * bytes);
    args.y = behind(output(0), first * bytes);
    plan.launch(half ? "softmax_columns_f16" : "softmax_columns_f32",
                {to_u31(std::min(most, outer - first) * groups)}, static_cast<uint32_t>(kThreads), args);
  }
}

}  // namespace

Plan softmax_plan(int64_t outer, int64_t D, int64_t inner, bool log, bool half, const DeviceFacts& device) {
  Plan plan;
  if (outer * D * inner == 0) return plan;
  if (inner > 1) {
    add_columns(plan, outer, D, inner, log, half);
    return plan;
  }
  const int64_t threads =
      std::clamp<int64_t>(round_up(divide_up(to_u31(D), 4), device.wave), device.wave, 1024);
  hip::SoftmaxArgs args = {};
  args.D = to_u31(D);
  args.log = log;
  args.threads = static_cast<int32_t>(threads);
  const int64_t bytes = (half ? 2 : 4) * D;
  for_each_launch(outer, threads, [&](int64_t first, uint32_t count) {
    args.x = behind(input(0), first * bytes);
    args.y = behind(output(0), first * bytes);
    plan.launch(half ? "softmax_f16" : "softmax_f32", {count}, static_cast<uint32_t>(threads), args);
  });
  return plan;
}

}  // namespace graphopt::gpu
