#include "gpu/gather_plan.h"

namespace graphopt::gpu {

Plan gather_plan(const GatherProblem& p, bool aligned) {
  constexpr int64_t kThreads = 256;  // hip/gather.hip
  Plan plan;
  int64_t inner = p.inner, bytes = p.bytes;
  if (bytes == 8) {
    bytes = 4;
    inner *= 2;
  }
  if (aligned && inner * bytes % 16 == 0) {
    inner = inner * bytes / 16;
    bytes = 16;
  }
  const int64_t total = p.outer * p.indices * inner;
  if (total == 0) return plan;
  const char* name = bytes == 16 ? "gather_b128" : bytes == 4 ? "gather_b32" : "gather_b16";
  plan.launches.push_back(Launch(name, to_u31(divide_up(total, kThreads)), 1, 1, kThreads)
                              .add(input(0))
                              .add(input(1))
                              .add(output(0))
                              .add(to_u31(total))
                              .add(make_divisor(inner))
                              .add(make_divisor(p.indices))
                              .add(to_u31(p.size))
                              .add(int32_t{p.narrow}));
  return plan;
}

Plan cast_plan(int64_t total, abi::ElementType from, abi::ElementType to) {
  constexpr int64_t kThreads = 256, kElements = 4;  // hip/cast.hip
  Plan plan;
  if (total == 0) return plan;
  plan.launches.push_back(
      Launch("cast_number", to_u31(divide_up(total, kThreads * kElements)), 1, 1, kThreads)
          .add(input(0))
          .add(output(0))
          .add(to_u31(total))
          .add(static_cast<int32_t>(from))
          .add(static_cast<int32_t>(to)));
  return plan;
}

}  // namespace graphopt::gpu
