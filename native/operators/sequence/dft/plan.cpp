#include <stdexcept>

#include "operators/sequence/dft/args.h"
#include "operators/sequence/dft/op.h"

namespace graphopt::gpu {

Plan dft_plan(const DftProblem& p, bool half) {
  Plan plan;
  if (p.lines * p.K == 0) return plan;
  if (p.L < 1 || p.L > 1 << 28) {
    throw std::invalid_argument("a transform of " + std::to_string(p.L) + " elements is not supported");
  }
  hip::DftTableArgs table = {};
  table.table = workspace(0);
  table.L = to_u31(p.L);
  plan.launch_items("dft_table", p.L, hip::kDftThreads, table);
  hip::DftArgs args = {};
  args.x = input(0);
  args.window = p.window ? input(1) : no_buffer();
  args.table = workspace(0);
  args.y = output(0);
  args.from = p.from;
  args.to = p.to;
  args.per = make_divisor(p.per);
  args.lines = to_u31(p.lines);
  args.N = to_i31(p.N);
  args.L = to_i31(p.L);
  args.K = to_i31(p.K);
  args.complex = p.complex;
  args.sign = p.inverse ? 1.0f : -1.0f;
  args.factor = p.inverse ? 1.0f / static_cast<float>(p.L) : 1.0f;
  const int64_t blocks = divide_up(p.K, hip::kDftThreads);
  if (blocks > kMaxGrid)
    throw std::invalid_argument("a transform of " + std::to_string(p.L) + " elements is not supported");
  plan.launch(float_kernel("dft", half), {to_u31(divide_up(p.lines, hip::kDftLines)), to_u31(blocks)},
              hip::kDftThreads, args);
  plan.workspace = {8 * p.L};
  return plan;
}

}  // namespace graphopt::gpu
