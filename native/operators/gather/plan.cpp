#include "operators/gather/args.h"
#include "operators/gather/op.h"

namespace graphopt::gpu {

Plan gather_plan(const GatherProblem& p, bool aligned) {
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
  hip::GatherArgs args = {};
  args.x = input(0);
  args.index = input(1);
  args.y = output(0);
  args.total = to_u31(total);
  args.inner = make_divisor(inner);
  args.indices = make_divisor(p.indices);
  args.size = to_u31(p.size);
  args.narrow = p.narrow;
  plan.launch(name, {to_u31(divide_up(total, hip::kGatherThreads))}, hip::kGatherThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
