#include "operators/rotary/args.h"
#include "operators/rotary/op.h"

namespace graphopt::gpu {

Plan rotary_plan(const RotaryProblem& p, bool half) {
  Plan plan;
  const int64_t total = p.B * p.S * p.N * p.H;
  if (total == 0) return plan;
  hip::RotaryArgs args = {};
  args.x = input(0);
  args.ids = p.has_ids ? input(1) : no_buffer();
  args.cos = input(2);
  args.sin = input(3);
  args.y = output(0);
  args.total = to_u31(total);
  args.head = make_divisor(p.H);
  args.columns = make_divisor(p.heads_first ? p.S : p.N);
  args.rows = make_divisor(p.heads_first ? p.N : p.S);
  args.half = to_i31(p.half);
  args.positions = to_i31(p.positions);
  args.tokens_inside = p.heads_first;
  args.one_id = p.one_id;
  args.interleaved = p.interleaved;
  plan.launch(half ? "rotary_f16" : "rotary_f32", {to_u31(divide_up(total, hip::kRotaryThreads))},
              hip::kRotaryThreads, args);
  return plan;
}

Plan fused_rotary_plan(const FusedRotaryProblem& p, bool half) {
  Plan plan;
  const int64_t total = p.rows() * p.D;
  if (total == 0) return plan;
  hip::FusedRotaryArgs args = {};
  args.x = input(0);
  args.cos = input(1);
  args.sin = input(2);
  args.y = output(0);
  args.total = to_u31(total);
  args.D = make_divisor(p.D);
  args.n2 = make_divisor(p.n[2]);
  args.n1 = make_divisor(p.n[1]);
  for (size_t i = 0; i < 3; ++i) {
    args.x_steps[i] = to_u31(p.x[i]);
    args.cos_steps[i] = to_u31(p.cos[i]);
    args.sin_steps[i] = to_u31(p.sin[i]);
  }
  args.interleaved = p.interleaved;
  plan.launch(half ? "fused_rotary_f16" : "fused_rotary_f32", {to_u31(divide_up(total, hip::kRotaryThreads))},
              hip::kRotaryThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
