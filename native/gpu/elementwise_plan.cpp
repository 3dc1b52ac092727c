#include "gpu/elementwise_plan.h"

namespace graphopt::gpu {

Plan elementwise_plan(const ElementwiseProblem& p, bool half, bool aligned) {
  constexpr int64_t kThreads = 256, kPacks = 2;  // hip/elementwise.hip
  const int64_t pack = half ? 8 : 4;
  Plan plan;
  if (p.y.elements() == 0) return plan;
  enum { kY, kA, kB, kMask };
  std::vector<std::vector<int64_t>> strides = {contiguous(p.y), broadcast(p.a, p.y)};
  const std::vector<int64_t> none(p.y.rank(), 0);
  strides.push_back(p.binary ? broadcast(p.b, p.y) : none);
  strides.push_back(p.masked ? broadcast(p.mask, p.y) : none);
  Walk walk(p.y, std::move(strides));
  walk.simplify();
  const bool vectors = aligned && walk.in_vectors(kY, pack, false) && walk.in_vectors(kA, pack, true) &&
                       walk.in_vectors(kB, pack, true);
  const uint32_t total = walk.total();
  plan.launches.push_back(Launch(half ? "elementwise_f16" : "elementwise_f32",
                                 to_u31(divide_up(total, kThreads * kPacks * pack)), 1, 1, kThreads)
                              .add(p.masked ? input(2) : no_buffer())
                              .add(input(0))
                              .add(p.binary ? input(1) : no_buffer())
                              .add(output(0))
                              .add(total)
                              .add(walk.axes())
                              .add(walk.strides(kMask))
                              .add(walk.strides(kA))
                              .add(walk.strides(kB))
                              .add(static_cast<int32_t>(p.op))
                              .add(p.p)
                              .add(p.q)
                              .add(int32_t{vectors}));
  return plan;
}

}  // namespace graphopt::gpu
