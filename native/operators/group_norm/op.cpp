#include "operators/group_norm/op.h"

#include "operators/elementwise/op.h"
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
using GroupNormKernel = CpuKernelOfThree<GroupNormOp, T, cpu::group_norm<T>, cpu::group_norm_workspace<T>>;

void plan_own(GpuWork<GroupNormProblem>& work) {
  work.program.launch(gpu::group_norm_plan(work.p, work.half, work.call.aligned(), work.device.facts()),
                      work.call);
}

constexpr Implementation<GpuWork<GroupNormProblem>> kImplementations[] = {
    {"a kernel of our own", take_all<GpuWork<GroupNormProblem>>, plan_own},
};

// GroupNormalization, and InstanceNormalization, whose groups are channels. Inputs X, scale, B.
class StandardGroupNorm final : public gpu::DeviceKernel {
 public:
  StandardGroupNorm(const Node& node, gpu::Device& device, bool instance)
      : DeviceKernel(device),
        groups_(instance ? 0 : node.get_int("num_groups")),
        epsilon_(node.find_float("epsilon").value_or(1e-5f)) {
    if (groups_ < 0 || (groups_ == 0 && !instance)) throw Error("num_groups must be positive");
    by_group_ = !instance && node.version < 21;
  }

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    if (x.shape.rank() < 2) throw Error("X must be [N,C,D1,...], got " + x.shape.text());
    GroupNormProblem p;
    p.N = x.shape[0];
    p.C = x.shape[1];
    p.inner = x.shape.elements(2);
    p.groups = groups_ == 0 ? p.C : groups_;
    p.epsilon = epsilon_;
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
};

std::string refuse_mixed(const Node& node) { return refuse_mixed_floats(node); }

}  // namespace

void add_group_norm(Kernels& kernels) {
  kernels.add_cpu<GroupNormOp, GroupNormKernel>(Reuse::kInplace);
  kernels.add_gpu<GroupNormOp, GpuKernel<GroupNormOp, kImplementations>>(Where::kGpu, Reuse::kInplace);
  kernels.add_onnx<StandardGroupNorm>("InstanceNormalization", 6, 22, true).refused(refuse_mixed);
  kernels.add_onnx<StandardGroupNorm>("GroupNormalization", 18, 21, false).refused(refuse_mixed);
}

}  // namespace graphopt
