#include "gpu/reduce_plan.h"

#include <algorithm>

namespace graphopt::gpu {

Plan softmax_plan(int64_t rows, int64_t D, bool log, bool half, const DeviceFacts& device) {
  Plan plan;
  if (rows * D == 0) return plan;
  const int64_t threads =
      std::clamp<int64_t>(round_up(divide_up(to_u31(D), 4), device.wave), device.wave, 1024);
  plan.launches.push_back(
      Launch(half ? "softmax_f16" : "softmax_f32", to_u31(rows), 1, 1, static_cast<uint32_t>(threads))
          .add(input(0))
          .add(output(0))
          .add(to_u31(D))
          .add(int32_t{log})
          .add(static_cast<int32_t>(threads)));
  return plan;
}

Plan reduce_plan(int64_t outer, int64_t R, int64_t inner, Reduction how, bool half) {
  constexpr int64_t kThreads = 256;  // hip/reduce.hip
  Plan plan;
  if (outer * inner == 0) return plan;
  const auto code = how == Reduction::kMean ? 0 : static_cast<int32_t>(how);
  const float scale = how == Reduction::kMean ? 1.0f / static_cast<float>(R) : 1.0f;
  if (inner == 1) {
    plan.launches.push_back(
        Launch(half ? "reduce_rows_f16" : "reduce_rows_f32", to_u31(outer), 1, 1, kThreads)
            .add(input(0))
            .add(output(0))
            .add(to_u31(R))
            .add(code)
            .add(scale));
    return plan;
  }
  const uint32_t total = to_u31(outer * inner);
  plan.launches.push_back(Launch(half ? "reduce_columns_f16" : "reduce_columns_f32",
                                 to_u31(divide_up(total, kThreads)), 1, 1, kThreads)
                              .add(input(0))
                              .add(output(0))
                              .add(total)
                              .add(to_u31(R))
                              .add(make_divisor(inner))
                              .add(code)
                              .add(scale));
  return plan;
}

}  // namespace graphopt::gpu
