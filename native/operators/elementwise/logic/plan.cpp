#include "operators/elementwise/logic/op.h"

namespace graphopt::gpu {

Plan logic_plan(const LogicProblem& p, bool aligned) {
  const char* suffix = type_suffix(p.type);
  if (suffix == nullptr) throw std::invalid_argument("no comparison of this type");
  const int64_t pack = 16 / bytes_of(p.type);
  Plan plan;
  if (p.y.elements() == 0) return plan;
  enum { kY, kA, kB };
  std::vector<std::vector<int64_t>> strides = {contiguous(p.y), broadcast(p.a, p.y)};
  strides.push_back(p.binary ? broadcast(p.b, p.y) : std::vector<int64_t>(p.y.rank(), 0));
  Walk walk(p.y, std::move(strides));
  walk.simplify();
  hip::LogicArgs args = {};
  args.a = input(0);
  args.b = p.binary ? input(1) : no_buffer();
  args.y = output(0);
  args.total = walk.total();
  args.axes = walk.axes();
  args.a_strides = walk.strides(kA);
  args.b_strides = walk.strides(kB);
  args.op = p.op;
  args.is_unsigned = is_unsigned(p.type);
  args.vectors = aligned && walk.in_vectors(kY, pack, false) && walk.in_vectors(kA, pack, true) &&
                 walk.in_vectors(kB, pack, true);
  plan.launch_items(kernel_name({"logic", suffix}), divide_up(args.total, pack), hip::kLogicThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
