#include "gpu/row_norm_plan.h"

#include <algorithm>

namespace graphopt::gpu {

Plan row_norm_plan(const RowNormProblem& p, bool half, bool aligned, const DeviceFacts& device) {
  constexpr int64_t kVectors = 4, kMaxThreads = 1024, kAnyThreads = 1024;  // hip/row_norm.hip
  Plan plan;
  if (p.rows * p.D == 0) return plan;
  const int64_t pack = half ? 8 : 4;
  const uint8_t gamma = p.has_residual ? 2 : 1;
  const Buffer residual = p.has_residual ? input(1) : no_buffer();
  const Buffer beta = p.rms ? no_buffer() : input(static_cast<uint8_t>(gamma + 1));
  const Buffer sum = p.writes_sum ? output(1) : no_buffer();
  const bool registers = aligned && p.D % pack == 0 && p.D / pack <= kMaxThreads * kVectors;
  // Two vectors a lane keep enough loads in flight; the row fits into a wave or a few.
  const int64_t threads = std::clamp(round_up(divide_up(p.D / pack, 2), device.wave),
                                     static_cast<int64_t>(device.wave), kMaxThreads);
  const char* name =
      registers ? (half ? "row_norm_f16" : "row_norm_f32") : (half ? "row_norm_any_f16" : "row_norm_any_f32");
  Launch launch(name, to_u31(p.rows), 1, 1, static_cast<uint32_t>(registers ? threads : kAnyThreads));
  launch.add(input(0)).add(residual).add(input(gamma)).add(beta).add(output(0)).add(sum);
  launch.add(to_u31(p.D)).add(p.epsilon).add(int32_t{p.rms});
  if (registers) launch.add(static_cast<int32_t>(threads));
  plan.launches.push_back(launch);
  return plan;
}

}  // namespace graphopt::gpu
