#include "operators/attention/rotary/args.h"
#include "operators/attention/rotary/op.h"

namespace graphopt::gpu {
namespace {

// Whether every group of kRotaryTogether adjacent elements of a head has adjacent pair partners and adjacent angles.
bool can_vectorize(int64_t H, int64_t half, bool interleaved) {
  return H % hip::kRotaryTogether == 0 && (interleaved ? 2 * half : half) % hip::kRotaryTogether == 0;
}

template <class Args>
void launch(Plan& plan, const char* name, bool half, bool vectorized, int64_t total, const Args& args) {
  plan.launch_items(kernel_name({name, vectorized ? "_together" : "", half ? "_f16" : "_f32"}),
                    vectorized ? total / hip::kRotaryTogether : total, hip::kRotaryThreads, args);
}

}  // namespace

Plan rotary_plan(const RotaryProblem& p, bool half, bool aligned) {
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
  args.columns_are_tokens = p.heads_first;
  args.one_id = p.one_id;
  args.interleaved = p.interleaved;
  launch(plan, "rotary", half, aligned && can_vectorize(p.H, p.half, p.interleaved), total, args);
  return plan;
}

Plan fused_rotary_plan(const FusedRotaryProblem& p, bool half, bool aligned) {
  Plan plan;
  const int64_t total = p.rows() * p.D;
  if (total == 0) return plan;
  hip::FusedRotaryArgs args = {};
  args.x = offset_by(input(0), p.x_offset * (half ? 2 : 4));
  args.cos = input(1);
  args.sin = input(2);
  args.y = output(0);
  args.total = to_u31(total);
  args.D = make_divisor(p.D);
  args.n2 = make_divisor(p.n[2]);
  args.n1 = make_divisor(p.n[1]);
  bool vectorized =
      aligned && can_vectorize(p.D, p.D / 2, p.interleaved) && p.x_offset % hip::kRotaryTogether == 0;
  for (size_t i = 0; i < 3; ++i) {
    for (const int64_t stride : {p.x[i], p.cos[i], p.sin[i]})
      vectorized = vectorized && stride % hip::kRotaryTogether == 0;
    args.x_strides[i] = to_u31(p.x[i]);
    args.cos_strides[i] = to_u31(p.cos[i]);
    args.sin_strides[i] = to_u31(p.sin[i]);
  }
  args.interleaved = p.interleaved;
  launch(plan, "fused_rotary", half, vectorized, total, args);
  return plan;
}

}  // namespace graphopt::gpu
