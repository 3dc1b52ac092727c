#include <algorithm>

#include "operators/elementwise/gated/args.h"
#include "operators/elementwise/gated/op.h"

namespace graphopt::gpu {

Plan gated_plan(const GatedProblem& p, bool half, bool aligned) {
  constexpr int64_t kThreadBytes = 16;
  Plan plan;
  if (p.rows * p.D == 0) return plan;
  const int64_t element = half ? 2 : 4, pack = kThreadBytes / element;
  const int64_t x_row = (p.halves ? 2 : 1) * p.D;
  // One launch computes at most 2^30 elements of X, or one row: kernels count elements with 31 bits.
  const int64_t max_rows = std::max<int64_t>(1, (int64_t{1} << 30) / to_u31(x_row));
  hip::GatedArgs args = {};
  args.D = make_divisor(p.D);
  args.skip = static_cast<uint32_t>(x_row - p.D);
  args.vectors = aligned && p.D % pack == 0;
  args.a_first = p.halves ? to_u31(p.gate * p.D) : 0;
  args.b_first = p.halves ? to_u31((1 - p.gate) * p.D) : 0;
  args.act = p.act;
  for (int64_t first = 0; first < p.rows; first += max_rows) {
    const int64_t total = std::min(max_rows, p.rows - first) * p.D;
    const int64_t x = first * x_row * element;
    args.a = offset_by(input(0), x);
    args.b = offset_by(input(p.halves ? 0 : 1), x);
    args.y = offset_by(output(0), first * p.D * element);
    args.total = to_u31(total);
    const int64_t items = args.vectors != 0 ? total / pack : total;
    plan.launch_items(float_kernel("gated", half), items, hip::kGatedThreads, args);
  }
  return plan;
}

}  // namespace graphopt::gpu
