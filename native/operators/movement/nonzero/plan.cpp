#include <stdexcept>
#include <string>

#include "operators/movement/nonzero/args.h"
#include "operators/movement/nonzero/op.h"

namespace graphopt::gpu {
namespace {

uint64_t mask_of(const NonzeroType& type) {
  return ~uint64_t{0} >> (64 - 8 * type.bytes + (type.is_float ? 1 : 0));
}

}  // namespace

int64_t nonzero_parts(int64_t total) { return divide_up(total, hip::kNonzeroPart); }

Plan nonzero_count_plan(int64_t total, const NonzeroType& type) {
  Plan plan;
  const int64_t parts = nonzero_parts(total);
  if (parts > 0) {
    plan.workspace.push_back(parts * 4);
    hip::NonzeroCountArgs args = {};
    args.x = input(0);
    args.counts = workspace(0);
    args.mask = mask_of(type);
    args.total = to_u31(total);
    plan.launch(bits_kernel("nonzero_count", type.bytes), {to_u31(parts)}, hip::kNonzeroThreads, args);
  }
  hip::NonzeroStartsArgs args = {};
  args.counts = parts > 0 ? workspace(0) : no_buffer();
  args.all = output(0);
  args.starts = output(1);
  args.parts = to_u31(parts);
  plan.launch("nonzero_starts", {1}, hip::kNonzeroThreads, args);
  return plan;
}

Plan nonzero_indices_plan(const Shape& x, const NonzeroType& type, int64_t all) {
  if (all == 0) return {};
  if (x.rank() > hip::kNonzeroMaxAxes)
    throw std::invalid_argument("rank " + std::to_string(x.rank()) + " is not supported");
  const int64_t total = x.elements();
  hip::NonzeroIndicesArgs args = {};
  args.x = input(0);
  args.starts = input(1);
  args.y = output(0);
  args.mask = mask_of(type);
  args.total = to_u31(total);
  args.all = to_u31(all);
  args.axes = static_cast<int32_t>(x.rank());
  for (size_t d = 0; d < x.rank(); ++d) args.sizes[d] = make_divisor(x[x.rank() - 1 - d]);
  return one_launch(bits_kernel("nonzero_indices", type.bytes), Grid{to_u31(nonzero_parts(total))},
                    hip::kNonzeroThreads, args);
}

}  // namespace graphopt::gpu
