#include "operators/normalization/group_norm/op.h"

#include "operators/elementwise/elementwise/op.h"
#include "operators/kernel_bases.h"

namespace graphopt {

std::vector<GroupNormOp> GroupNormOp::all() { return with_tails<GroupNormOp>({false}, all_activations()); }

void GroupNormOp::read(const Node& node) {
  TailedOperator::read(node);
  epsilon_ = node.get_float("epsilon");
  groups_ = node.get_int("num_groups");
  if (groups_ <= 0) throw Error("attribute 'num_groups' must be positive, got " + std::to_string(groups_));
}

GroupNormProblem GroupNormOp::problem(const Shapes& inputs) const {
  return problem(inputs[0], inputs[1], inputs[2]);
}

GroupNormProblem GroupNormOp::problem(const Shape& x, const Shape& gamma, const Shape& beta) const {
  if (x.rank() < 2) throw Error("X must be [N,C,D1,...], got " + x.text());
  if (x[1] % groups_ != 0) {
    throw Error(std::to_string(x[1]) + " channels do not divide into " + std::to_string(groups_) + " groups");
  }
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
using GroupNormKernel = CpuKernelOfThree<GroupNormOp, T, cpu::group_norm<T>, cpu::group_norm_workspace<T>>;

void plan_own(GpuWork<GroupNormProblem>& work) {
  work.program.launch(gpu::group_norm_plan(work.p, work.half, work.call.aligned(), work.device.facts()),
                      work.call);
}

constexpr Implementation<GpuWork<GroupNormProblem>> kImplementations[] = {
    {"a kernel of our own", take_all<GpuWork<GroupNormProblem>>, plan_own},
};

class GroupNormGpu final : public GpuKernelOf<GroupNormOp> {
 public:
  GroupNormGpu(const GroupNormOp& op, const Node& node, gpu::Device& device, bool last = false)
      : GpuKernelOf(op, node, device), last_(last) {}
  static Implementations implementations() { return described(kImplementations); }

 private:
  void plan(Call& call, Program& program) const override {
    const Shapes inputs(call.inputs);
    GroupNormProblem p = op_.problem(last_ ? to_channels_first(inputs[0]) : inputs[0], inputs[1], inputs[2]);
    p.channels_last = last_;
    set_output(call, 0, inputs[0]);
    GpuWork<GroupNormProblem> work{p, half_, call, program, device_};
    program.implementation = choice_.plan(kImplementations, work, call);
  }

  bool last_;
};

// GroupNormalization, and InstanceNormalization, whose groups are channels. Inputs X, scale, B.
class StandardGroupNorm final : public gpu::DeviceKernel {
 public:
  StandardGroupNorm(const Node& node, gpu::Device& device, bool instance, bool last = false)
      : DeviceKernel(device),
        groups_(instance ? 0 : node.get_int("num_groups")),
        epsilon_(node.find_float("epsilon").value_or(1e-5f)),
        last_(last) {
    if (groups_ < 0 || (groups_ == 0 && !instance)) throw Error("num_groups must be positive");
    by_group_ = !instance && node.version < 21;
  }

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const Shape shape = last_ ? to_channels_first(x.shape) : x.shape;
    if (shape.rank() < 2) throw Error("X must be [N,C,D1,...], got " + shape.text());
    GroupNormProblem p;
    p.N = shape[0];
    p.C = shape[1];
    p.inner = shape.elements(2);
    p.groups = groups_ == 0 ? p.C : groups_;
    p.epsilon = epsilon_;
    p.channels_last = last_;
    const Ref y = set_output(call, 0, x.shape);
    if (p.C == 0) return;
    if (p.C % p.groups != 0) {
      throw Error(std::to_string(p.C) + " channels do not divide into " + std::to_string(p.groups) +
                  " groups");
    }
    Ref parameters[2] = {Ref::input(1), Ref::input(2)};
    const bool half = is_half(x);
    for (size_t i = 0; i < 2; ++i) {
      const int64_t wanted = by_group_ ? p.groups : p.C;
      if (call.input(1 + i).shape != Shape{wanted}) {
        throw Error("scale and B must be [" + std::to_string(wanted) + "]");
      }
      if (!by_group_) continue;
      const Ref repeated = program.reserve(p.C * bytes_of(x.type));
      program.launch(gpu::broadcast_plan({p.groups, 1}, {p.groups, p.C / p.groups}, half, call.aligned()),
                     {parameters[i]}, {repeated});
      parameters[i] = repeated;
    }
    program.launch(gpu::group_norm_plan(p, half, call.aligned(), device_.facts()),
                   {Ref::input(0), parameters[0], parameters[1]}, {y});
  }

  int64_t groups_;
  bool by_group_ = false;  // scale and B have a number for each group
  float epsilon_;
  bool last_;
};

std::string refuse_mixed(const Node& node) { return refuse_mixed_floats(node); }

}  // namespace

void add_group_norm(Kernels& kernels) {
  kernels.add_cpu<GroupNormOp, GroupNormKernel>(Reuse::kInplace);
  kernels.add_gpu<GroupNormOp, GroupNormGpu>(Where::kGpu, Reuse::kInplace);
  const auto follows = [](const Node&) { return Layout::kFollows; };
  kernels.have_channels_last<GroupNormOp, GroupNormGpu>(follows);
  kernels.add_onnx<StandardGroupNorm>("InstanceNormalization", 6, 22, true)
      .refused(refuse_mixed)
      .lies(follows);
  kernels.has_channels_last<StandardGroupNorm>(true);
  kernels.add_onnx<StandardGroupNorm>("GroupNormalization", 18, 21, false)
      .refused(refuse_mixed)
      .lies(follows);
  kernels.has_channels_last<StandardGroupNorm>(false);
}

}  // namespace graphopt
