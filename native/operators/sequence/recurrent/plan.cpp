#include <stdexcept>

#include "operators/sequence/recurrent/args.h"
#include "operators/sequence/recurrent/op.h"

namespace graphopt::gpu {
namespace {

// Returns the number of parts of RecurrentArgs::state.
int64_t state_parts(RecurrentKind kind) {
  return kind == RecurrentKind::kGruReset ? 4 : kind == RecurrentKind::kLstm ? 3 : 2;
}

// Returns the kernel that computes all steps in one launch; null if there are too many hidden units for it.
const char* persistent_kernel(const RecurrentProblem& p, bool half) {
  if (p.H <= hip::kPersistentUnits) return float_kernel("recurrent_persistent_64", half);
  if (p.H > hip::kPersistentUnitsWithFewGates || p.kind == RecurrentKind::kLstm) return nullptr;
  return float_kernel("recurrent_persistent_128", half);
}

}  // namespace

Plan recurrent_plan(const RecurrentProblem& p, bool half, const DeviceFacts& device,
                    std::optional<bool> at_once) {
  Plan plan;
  const int64_t total = p.D * p.B * p.H;
  if (total == 0) return plan;
  to_u31(4 * total);
  to_u31(p.gates() * p.H * p.H);
  to_u31(p.S * p.B);
  const auto copy_state = [&](const char* kernel, Buffer from, Buffer to, int64_t part) {
    hip::RecurrentStateArgs args = {};
    args.from = from;
    args.to = to;
    args.state = part * total;
    args.total = to_u31(total);
    args.H = make_divisor(p.H);
    args.B = make_divisor(p.B);
    args.D = to_i31(p.D);
    args.batch_first = p.batch_first;
    plan.launch_items(kernel, total, hip::kStateThreads, args);
  };
  const bool lstm = p.kind == RecurrentKind::kLstm;
  const char* const load = float_kernel("recurrent_load", half);
  copy_state(load, p.h ? input(5) : no_buffer(), workspace(0), 0);
  if (lstm) copy_state(load, p.c ? input(6) : no_buffer(), workspace(0), 2);

  hip::RecurrentArgs args = {};
  args.projection = input(0);
  args.r = input(1);
  args.bias = p.bias ? input(2) : no_buffer();
  args.peepholes = p.peepholes ? input(3) : no_buffer();
  args.lengths = p.lengths ? input(4) : no_buffer();
  args.state = workspace(0);
  args.y = output(0);
  args.y_direction_stride = p.batch_first ? p.H : p.B * p.H;
  args.y_step_stride = p.D * (p.batch_first ? 1 : p.B) * p.H;
  args.y_sequence_stride = p.batch_first ? p.S * p.D * p.H : p.H;
  args.D = to_i31(p.D);
  args.B = to_i31(p.B);
  args.H = to_i31(p.H);
  args.S = to_i31(p.S);
  args.step_rows = to_i31(p.batch_first ? 1 : p.B);
  args.sequence_rows = to_i31(p.batch_first ? p.S : 1);
  args.first_backward = p.backward ? 0 : 1;
  args.kind = p.kind;
  args.clip = p.clip;
  const char* const persistent = persistent_kernel(p, half);
  if (persistent != nullptr && at_once.value_or(true)) {
    plan.launch(persistent, {to_u31(p.B), to_u31(p.D)}, hip::kRecurrentThreads, args);
  } else {
    const int64_t units = hip::kStepThreads / device.wave, groups = divide_up(p.B, hip::kStepSequences);
    if (groups > kMaxGrid) throw std::invalid_argument("there are too many sequences");
    for (int64_t s = 0; s < p.S; ++s) {
      for (int second = 0; second < (p.kind == RecurrentKind::kGruReset ? 2 : 1); ++second) {
        args.step = static_cast<int32_t>(s);
        args.second = second;
        plan.launch(float_kernel("recurrent_step", half),
                    {to_u31(divide_up(p.H, units)), to_u31(groups), to_u31(p.D)}, hip::kStepThreads, args);
      }
    }
  }
  const char* const store = float_kernel("recurrent_store", half);
  copy_state(store, workspace(0), output(1), p.S % 2);
  if (lstm) copy_state(store, workspace(0), output(2), 2);
  plan.workspace = {state_parts(p.kind) * total * 4};
  return plan;
}

}  // namespace graphopt::gpu
