// CumSum.
#include "operators/sequence/cumsum/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// The axis is input 1.
Planner plan_cum_sum(const Node& node) {
  const bool reverse = node.get_bool("reverse"), exclusive = node.get_bool("exclusive");
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    gpu::CumSumProblem p;
    std::tie(p.outer, p.size, p.inner) =
        split_at(x.shape, axis_of(call.integer(1, "the axis"), x.shape.rank()));
    p.reverse = reverse;
    p.exclusive = exclusive;
    p.type = x.type;
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::cumsum_plan(p, program.device().facts()), {Ref::input(0)}, {y});
  };
}

}  // namespace

void add_cumsum(Kernels& kernels) {
  Registration& r = kernels.add_onnx("CumSum", 11, 14, plan_cum_sum).reads_on_host({1}).accepts_all_numbers();
  r.types = {ElementType::kFloat, ElementType::kHalf,   ElementType::kInt32,
             ElementType::kInt64, ElementType::kUint32, ElementType::kUint64};
}

}  // namespace graphopt
