// CPU kernels of our domain: a node's attributes and the shapes of a call give a Problem, which a function of
// native/cpu computes.
#include <algorithm>

#include "blocks/half.h"
#include "device/cpu/weight_cache.h"
#include "operators/attention/cpu.h"
#include "operators/group_norm/cpu.h"
#include "operators/kernels.h"
#include "operators/row_norm/cpu.h"
#include "operators/scale_shift/cpu.h"
#include "operators/winograd/cpu.h"

namespace graphopt {
namespace {

template <class T>
const T* data(const Call& call, size_t i) {
  return call.inputs[i].as<const T>();
}

// Plans are problems. T is float or half.
template <class Op>
class CpuKernel : public Kernel {
 public:
  CpuKernel(const Op& op, const Node& node) : op_(op) { op_.read(node); }

  void plan(Call& call) const override {
    const Shapes shapes(call.inputs);
    call.state.emplace<Problem>(op_.problem(shapes));
    const Shape y = op_.output(shapes);
    for (size_t i = 0; i < op_.outputs(); ++i) call.set_output(i, y, call.inputs[0].type, Place::kHost);
  }

 protected:
  using Problem = typename Op::Problem;
  static const Problem& problem(const Call& call) { return call.state.get<Problem>(); }

  Op op_;
};

template <class T>
class ScaleShiftKernel final : public CpuKernel<ScaleShiftOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    const ScaleShiftProblem& p = problem(call);
    cpu::scale_shift(p, data<T>(call, 0), data<T>(call, 1), data<T>(call, 2),
                     p.has_residual ? data<T>(call, 3) : nullptr, call.outputs[0].as<T>(), *call.parallel,
                     *call.arena);
    return true;
  }
};

template <class T>
class WinogradConvKernel final : public CpuKernel<WinogradConvOp> {
 public:
  WinogradConvKernel(const WinogradConvOp& op, const Node& node) : CpuKernel(op, node) {
    const auto w = node.constant(1);
    if (!w) return;
    const auto& x = node.inputs[0].shape;
    const ConvProblem p = op_.static_problem(x ? &*x : nullptr, w->shape);
    const cpu::ConvAlgorithm algorithm = cpu::winograd_choose(p, sizeof(T));
    weights_ = cpu::WeightCache::process().get<cpu::WinogradWeights>(
        {sizeof(T), p.M, p.C, static_cast<int64_t>(algorithm)}, w->data,
        static_cast<size_t>(w->shape.elements()) * sizeof(T),
        [&] { return cpu::winograd_prepare(p, w->as<const T>(), algorithm); });
  }

  bool run(Call& call) const override {
    const ConvProblem& p = problem(call);
    if (p.N * p.M * p.OH() * p.OW() == 0) return true;
    const auto& weights = weights_ ? weights_ : cpu::winograd_prepare(p, data<T>(call, 1));
    cpu::winograd_conv(p, data<T>(call, 0), *weights, data<T>(call, 2),
                       p.has_residual ? data<T>(call, 3) : nullptr, call.outputs[0].as<T>(), *call.parallel,
                       *call.arena);
    return true;
  }

 private:
  std::shared_ptr<const cpu::WinogradWeights> weights_;  // null when W may change between runs
};

template <class T>
class FusedAttentionKernel final : public CpuKernel<FusedAttentionOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    const AttentionProblem& p = problem(call);
    T* o = call.outputs[0].as<T>();
    const auto elements = static_cast<size_t>(call.outputs[0].shape.elements());
    if (elements == 0) return true;
    if (p.T == 0) {  // a product over no keys
      std::fill_n(o, elements, T(0));
      return true;
    }
    const size_t mask = p.has_bias ? 4 : 3;
    cpu::fused_attention(p, data<T>(call, 0), data<T>(call, 1), data<T>(call, 2),
                         p.has_bias ? data<T>(call, 3) : nullptr,
                         p.has_mask ? data<bool>(call, mask) : nullptr, o, *call.parallel, *call.arena);
    return true;
  }
};

template <class T>
class GroupNormKernel final : public CpuKernel<GroupNormOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    cpu::group_norm(problem(call), data<T>(call, 0), data<T>(call, 1), data<T>(call, 2),
                    call.outputs[0].as<T>(), *call.parallel, *call.arena);
    return true;
  }
};

template <class T>
class RowNormKernel final : public CpuKernel<RowNormOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    const RowNormProblem& p = problem(call);
    const size_t gamma = p.has_residual ? 2 : 1;
    cpu::row_norm(p, data<T>(call, 0), p.has_residual ? data<T>(call, 1) : nullptr, data<T>(call, gamma),
                  p.rms ? nullptr : data<T>(call, gamma + 1), call.outputs[0].as<T>(),
                  p.writes_sum ? call.outputs[1].as<T>() : nullptr, *call.parallel, *call.arena);
    return true;
  }
};

template <class Op, template <class> class KernelOf>
void add(Table& table, Reuse reuse) {
  for (const Op& op : Op::all()) {
    Registration& r = table.emplace_back(describe(op));
    if (r.outputs == 1) r.reuse = reuse;
    r.create = [op](const Node& node) -> std::unique_ptr<Kernel> {
      if (node.type() == ElementType::kHalf) return std::make_unique<KernelOf<half>>(op, node);
      return std::make_unique<KernelOf<float>>(op, node);
    };
  }
}

}  // namespace

Table cpu_kernels() {
  Table table;
  add<ScaleShiftOp, ScaleShiftKernel>(table, Reuse::kInplace);
  add<WinogradConvOp, WinogradConvKernel>(table, Reuse::kNone);
  add<FusedAttentionOp, FusedAttentionKernel>(table, Reuse::kNone);
  add<GroupNormOp, GroupNormKernel>(table, Reuse::kInplace);
  add<RowNormOp, RowNormKernel>(table, Reuse::kInplace);
  return table;
}

}  // namespace graphopt
