#include "operators/normalization/group_norm/op.h"

#include "operators/elementwise/elementwise/op.h"
#include "operators/kernel_bases.h"

namespace graphopt {
std::vector<GroupNormOp> GroupNormOp::all() { return with_tails<GroupNormOp>({false}, all_activations()); }

void GroupNormOp::read(const Node& node) {
  TailedOperator::read(node);
  epsilon_ = node.get_float("epsilon");
  groups_ = node.get_int("num_groups");
  throw_if(groups_ <= 0, "attribute 'num_groups' must be positive, got ", groups_);
}

GroupNormProblem GroupNormOp::problem(const Shapes& inputs) const {
  return problem(inputs[0], inputs[1], inputs[2]);
}

GroupNormProblem GroupNormOp::problem(const Shape& x, const Shape& gamma, const Shape& beta) const {
  throw_if(x.rank() < 2, "X must be [N,C,D1,...], got ", x);
  throw_if(x[1] % groups_ != 0, x[1], " channels do not divide into ", groups_, " groups");
  const Shape per_channel = {x[1]};
  require_shape("gamma", gamma, per_channel);
  require_shape("beta", beta, per_channel);
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
using GroupNormKernel = CpuKernelOf<GroupNormOp, T, 3, cpu::group_norm<T>, cpu::group_norm_workspace<T>>;

constexpr auto& kBuiltInGroupNorm = kBuiltIn<GroupNormProblem, gpu::group_norm_plan>;

class GroupNormGpu final : public GpuKernelOf<GroupNormOp> {
 public:
  GroupNormGpu(const GroupNormOp& op, const Node& node, gpu::Device& device, bool channels_last = false)
      : GpuKernelOf(op, node, device), channels_last_(channels_last) {}
  static Implementations implementations() { return summarize(kBuiltInGroupNorm); }

 private:
  void plan(Call& call, Program& program) const override {
    const Shapes inputs(call.inputs);
    GroupNormProblem p =
        op_.problem(channels_last_ ? to_channels_first(inputs[0]) : inputs[0], inputs[1], inputs[2]);
    p.channels_last = channels_last_;
    set_output(call, 0, inputs[0]);
    GpuWork<GroupNormProblem> work{p, half_, call, program};
    program.implementation = choice_.plan(kBuiltInGroupNorm, work, call);
  }

  bool channels_last_;
};

// GroupNormalization and InstanceNormalization (a group for each channel). Inputs X, scale, B.
Planner plan_standard_group_norm(const Node& node, bool instance, bool channels_last) {
  const int64_t groups = instance ? 0 : node.get_int("num_groups");
  const float epsilon = node.get_float("epsilon", 1e-5f);
  const bool by_group = !instance && node.version < 21;  // scale and B have an element per group
  throw_if(groups < 0 || (groups == 0 && !instance), "num_groups must be positive");
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const Shape shape = channels_last ? to_channels_first(x.shape) : x.shape;
    throw_if(shape.rank() < 2, "X must be [N,C,D1,...], got ", shape);
    GroupNormProblem p;
    p.N = shape[0];
    p.C = shape[1];
    p.inner = shape.elements(2);
    p.groups = groups == 0 ? p.C : groups;
    p.epsilon = epsilon;
    p.channels_last = channels_last;
    const Ref y = set_output(call, 0, x.shape);
    if (p.C == 0) return;
    throw_if(p.C % p.groups != 0, p.C, " channels do not divide into ", p.groups, " groups");
    Ref parameters[2] = {Ref::input(1), Ref::input(2)};
    const bool half = is_half(x);
    for (size_t i = 0; i < 2; ++i) {
      const int64_t wanted = by_group ? p.groups : p.C;
      throw_if(call.input(1 + i).shape != Shape{wanted}, "scale and B must be [", wanted, "]");
      if (!by_group) continue;
      const Ref repeated = program.reserve(p.C * bytes_of(x.type));
      program.launch(gpu::broadcast_plan({p.groups, 1}, {p.groups, p.C / p.groups}, half, call.aligned()),
                     {parameters[i]}, {repeated});
      parameters[i] = repeated;
    }
    program.launch(gpu::group_norm_plan(p, half, call.aligned(), program.device().facts()),
                   {Ref::input(0), parameters[0], parameters[1]}, {y});
  };
}

std::string refuse_mixed(const Node& node) { return refuse_mixed_floats(node); }

}  // namespace

void add_group_norm(Kernels& kernels) {
  kernels.add_cpu<GroupNormOp, GroupNormKernel>(Reuse::kInplace);
  kernels.add_gpu<GroupNormOp, GroupNormGpu>(Where::kGpu, Reuse::kInplace);
  kernels.have_channels_last<GroupNormOp, GroupNormGpu>([](const Node&) { return Layout::kFollows; });
  kernels.add_with_both_layouts("InstanceNormalization", 6, 22, plan_standard_group_norm, true)
      .refused(refuse_mixed);
  kernels.add_with_both_layouts("GroupNormalization", 18, 21, plan_standard_group_norm, false)
      .refused(refuse_mixed);
}

}  // namespace graphopt
