#include <algorithm>

#include "operators/scale_shift/args.h"
#include "operators/scale_shift/op.h"

namespace graphopt::gpu {

Plan scale_shift_plan(const ScaleShiftProblem& p, bool half, bool aligned) {
  constexpr int64_t kBytes = hip::kScaleShiftThreads * 16;
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
    hip::ScaleShiftArgs args = {};
    args.x = part(input(0));
    args.scale = input(1);
    args.shift = input(2);
    args.residual = p.has_residual ? part(input(3)) : no_buffer();
    args.y = part(output(0));
    args.total = to_u31(total);
    args.inner = make_divisor(p.inner);
    args.channels = make_divisor(p.C);
    args.first_channel = static_cast<uint32_t>(first % p.C);
    args.vectors = aligned && offset % 16 == 0;
    args.act = p.act;
    plan.launch(half ? "scale_shift_f16" : "scale_shift_f32", {grid}, hip::kScaleShiftThreads, args);
  }
  return plan;
}

}  // namespace graphopt::gpu
