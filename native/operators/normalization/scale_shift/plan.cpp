#include <algorithm>

#include "operators/normalization/scale_shift/args.h"
#include "operators/normalization/scale_shift/op.h"

namespace graphopt::gpu {

namespace {

// Adds launches for all planes; each launch processes as many planes as possible. fill(args, part) sets the arguments
// that differ between kernels. part(b) returns the launch's part of a buffer with the shape of X.
template <class Args, class Fill>
void add_launches(Plan& plan, const ScaleShiftProblem& p, int64_t element, bool aligned, const char* name,
                  const Fill& fill) {
  constexpr int64_t kBytes = hip::kScaleShiftThreads * 16;
  const int64_t planes = p.N * p.C;
  if (planes * p.inner == 0) return;
  // A launch counts elements with 31 bits. If it can process 8 planes or more, its number of planes is a multiple of 8.
  // The next launch then starts at a multiple of 16 bytes.
  int64_t step = std::max<int64_t>(1, ((int64_t{1} << 31) - kBytes) / to_u31(p.inner));
  if (step > 8) step -= step % 8;
  for (int64_t first = 0; first < planes; first += step) {
    const int64_t total = std::min(step, planes - first) * p.inner;
    const int64_t offset = first * p.inner * element;
    const auto part = [&](Buffer b) {
      b.offset = offset;
      return b;
    };
    Args args = {};
    fill(args, part);
    args.x = part(input(0));
    args.y = part(output(0));
    args.total = to_u31(total);
    args.inner = make_divisor(p.inner);
    args.channels = make_divisor(p.C);
    args.first_channel = static_cast<uint32_t>(first % p.C);
    args.vectors = aligned && offset % 16 == 0;
    plan.launch(name, {static_cast<uint32_t>(divide_up(total * element, kBytes))}, hip::kScaleShiftThreads,
                args);
  }
}

}  // namespace

Plan scale_shift_plan(const ScaleShiftProblem& p, bool half, bool aligned) {
  Plan plan;
  add_launches<hip::ScaleShiftArgs>(plan, p, half ? 2 : 4, aligned, float_kernel("scale_shift", half),
                                    [&](hip::ScaleShiftArgs& args, const auto& part) {
                                      args.scale = input(1);
                                      args.shift = input(2);
                                      args.residual = p.has_residual ? part(input(3)) : no_buffer();
                                      args.act = p.act;
                                    });
  return plan;
}

Plan shift_prelu_plan(const ScaleShiftProblem& p, bool half, bool aligned) {
  Plan plan;
  add_launches<hip::ShiftPReluArgs>(plan, p, half ? 2 : 4, aligned, float_kernel("shift_prelu", half),
                                    [&](hip::ShiftPReluArgs& args, const auto& part) {
                                      args.slope = input(1);
                                      args.shift = input(2);
                                      args.residual = p.has_residual ? part(input(3)) : no_buffer();
                                    });
  return plan;
}

Plan batch_norm_plan(const ScaleShiftProblem& p, float epsilon, bool half, bool half_parameters,
                     bool aligned) {
  Plan plan;
  const char* name = half_parameters ? "batch_norm_f16" : half ? "batch_norm_f16_of_f32" : "batch_norm_f32";
  add_launches<hip::BatchNormArgs>(plan, p, half ? 2 : 4, aligned, name,
                                   [&](hip::BatchNormArgs& args, const auto&) {
                                     args.scale = input(1);
                                     args.shift = input(2);
                                     args.mean = input(3);
                                     args.variance = input(4);
                                     args.epsilon = epsilon;
                                   });
  return plan;
}

}  // namespace graphopt::gpu
