#include "operators/group_norm/op.h"

#include "operators/room.h"

namespace graphopt {

std::vector<GroupNormOp> GroupNormOp::all() { return with_tails<GroupNormOp>({false}, all_activations()); }

void GroupNormOp::read(const Node& node) {
  TailedOperator::read(node);
  epsilon_ = node.get_float("epsilon");
  groups_ = node.get_int("num_groups");
  if (groups_ <= 0) throw Error("attribute 'num_groups' must be positive, got " + std::to_string(groups_));
}

GroupNormProblem GroupNormOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  if (x.rank() < 2) throw Error("X must be [N,C,D1,...], got " + x.text());
  if (x[1] % groups_ != 0) {
    throw Error(std::to_string(x[1]) + " channels do not divide into " + std::to_string(groups_) + " groups");
  }
  const Shape per_channel = {x[1]};
  require_shape("gamma", inputs[1], per_channel);
  require_shape("beta", inputs[2], per_channel);
  GroupNormProblem p;
  p.N = x[0];
  p.C = x[1];
  p.inner = x.elements(2);
  p.groups = groups_;
  p.epsilon = epsilon_;
  p.act = tail_.act;
  return p;
}

namespace {

template <class T>
class GroupNormKernel final : public CpuKernel<GroupNormOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    cpu::group_norm(problem(call), data<T>(call, 0), data<T>(call, 1), data<T>(call, 2),
                    call.outputs[0].as<T>(), *call.parallel, call.workspace);
    return true;
  }

 private:
  size_t workspace(const GroupNormProblem& p, size_t lanes) const override {
    return cpu::group_norm_workspace<T>(p, lanes);
  }
};

void plan_own(GpuWork<GroupNormProblem>& work) {
  work.program.launch(gpu::group_norm_plan(work.p, work.half, work.call.aligned(), work.device.facts()),
                      work.call);
}

constexpr Implementation<GpuWork<GroupNormProblem>> kImplementations[] = {
    {"a kernel of our own", take_all<GpuWork<GroupNormProblem>>, plan_own},
};

}  // namespace

void add_group_norm(Kernels& kernels) {
  kernels.add_cpu<GroupNormOp, GroupNormKernel>(Reuse::kInplace);
  kernels.add_gpu<GroupNormOp, GpuKernel<GroupNormOp, kImplementations>>(Where::kGpu, Reuse::kInplace);
}

}  // namespace graphopt
