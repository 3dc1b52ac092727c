#include "operators/cast/args.h"
#include "operators/cast/op.h"

namespace graphopt::gpu {

Plan cast_plan(int64_t total, ElementType from, ElementType to) {
  Plan plan;
  if (total == 0) return plan;
  hip::CastArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(total);
  args.from = from;
  args.to = to;
  plan.launch("cast_number", {to_u31(divide_up(total, hip::kCastThreads * hip::kCastElements))},
              hip::kCastThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
