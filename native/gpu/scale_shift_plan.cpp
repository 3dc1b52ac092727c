#include "gpu/scale_shift_plan.h"

#include <algorithm>

namespace graphopt::gpu {

Plan scale_shift_plan(const ScaleShiftProblem& p, bool half, bool aligned) {
  constexpr int64_t kThreads = 256, kBytes = kThreads * 4 * 16;  // hip/scale_shift.hip
  Plan plan;
  const int64_t element = half ? 2 : 4, planes = p.N * p.C;
  if (planes * p.inner == 0) return plan;
  // A launch counts elements in 31 bits. Every launch but the last has a multiple of 8 planes, so that the
  // next one starts at a multiple of 16 bytes.
  int64_t step = ((int64_t{1} << 31) - kBytes) / to_u31(p.inner);
  if (step > 8) step -= step % 8;
  for (int64_t first = 0; first < planes; first += step) {
    const int64_t total = std::min(step, planes - first) * p.inner;
    const int64_t offset = first * p.inner * element;
    const auto part = [&](Buffer b) {
      b.offset = offset;
      return b;
    };
    const auto grid = static_cast<uint32_t>(divide_up(total * element, kBytes));
    plan.launches.push_back(Launch(half ? "scale_shift_f16" : "scale_shift_f32", grid, 1, 1, kThreads)
                                .add(part(input(0)))
                                .add(input(1))
                                .add(input(2))
                                .add(p.has_residual ? part(input(3)) : no_buffer())
                                .add(part(output(0)))
                                .add(to_u31(total))
                                .add(make_divisor(p.inner))
                                .add(make_divisor(p.C))
                                .add(static_cast<uint32_t>(first % p.C))
                                .add(int32_t{aligned && offset % 16 == 0})
                                .add(p.act));
  }
  return plan;
}

}  // namespace graphopt::gpu
