// CPU kernels as ONNX Runtime calls them: tensors in, a Problem, the kernel function of native/cpu.
#include <sched.h>

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <thread>

#include "abi/custom_op.h"
#include "cpu/fused_attention.h"
#include "cpu/isa.h"
#include "cpu/norm.h"
#include "cpu/scale_shift.h"
#include "cpu/weight_cache.h"
#include "cpu/winograd_conv.h"
#include "kernels.h"
#include "ops/half.h"
#include "ops/schema.h"

namespace graphopt {
namespace {

using abi::Context;
using abi::ElementType;
using abi::Error;
using abi::Kernel;
using abi::NodeInfo;
using abi::OpDescription;
using abi::Shape;
using abi::Tensor;

constexpr size_t kMaxInputs = 5;

// The processors that this process may use, an upper bound on the session's intra-op threads, whose number
// the runtime does not tell.
size_t processor_count() {
  static const size_t count = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
      return std::max<size_t>(1, std::thread::hardware_concurrency());
    return static_cast<size_t>(CPU_COUNT(&set));
  }();
  return count;
}

class SessionParallel final : public cpu::Parallel {
 public:
  explicit SessionParallel(const Context& context) : context_(context) {}
  size_t lanes() const override { return processor_count(); }

 protected:
  void run_lanes(void (*fn)(void* user, size_t lane), void* user) override {
    // An exception must not leave a task: the pool is the runtime's.
    struct Call {
      void (*fn)(void*, size_t);
      void* user;
      std::mutex mutex;
      std::exception_ptr failure;
    } call{fn, user, {}, nullptr};
    context_.parallel_for(
        [](void* raw, size_t lane) {
          Call& c = *static_cast<Call*>(raw);
          try {
            c.fn(c.user, lane);
          } catch (...) {
            const std::lock_guard<std::mutex> lock(c.mutex);
            if (!c.failure) c.failure = std::current_exception();
          }
        },
        lanes(), &call);
    if (call.failure) std::rethrow_exception(call.failure);
  }

 private:
  const Context& context_;
};

class SessionWorkspace final : public cpu::Workspace {
 public:
  SessionWorkspace(const Context& context, const abi::HostMemory& memory)
      : context_(context), memory_(memory) {}
  void* allocate(size_t bytes) override {
    if (!arena_) arena_.emplace(context_, memory_);
    return arena_->allocate(bytes);
  }

 private:
  const Context& context_;
  const abi::HostMemory& memory_;
  std::optional<abi::HostArena> arena_;
};

// The tensors of one Compute call.
struct Inputs {
  std::array<Tensor, kMaxInputs> tensors;
  std::array<Shape, kMaxInputs> shapes;

  Inputs(const Context& context, size_t n) {
    const size_t given = context.input_count();
    if (given != n) throw Error("needs " + std::to_string(n) + " inputs, got " + std::to_string(given));
    for (size_t i = 0; i < n; ++i) {
      tensors[i] = context.input(i);
      shapes[i] = tensors[i].shape;
    }
  }
  template <class T>
  const T* data(size_t i) const {
    return static_cast<const T*>(tensors[i].data);
  }
};

template <class Op>
class CpuKernel : public Kernel {
 public:
  CpuKernel(const Op& op, const NodeInfo& info)
      : op_(op), input_count_(op.inputs().size()), memory_(info.api()) {
    op_.read(info);
  }

 protected:
  Op op_;
  size_t input_count_;
  abi::HostMemory memory_;
};

template <class T>
class ScaleShiftKernel final : public CpuKernel<ScaleShiftOp> {
 public:
  using CpuKernel::CpuKernel;
  void compute(const Context& context) const override {
    const Inputs in(context, input_count_);
    const ScaleShiftProblem p = op_.problem(in.shapes.data());
    T* y = static_cast<T*>(context.output(0, op_.output(in.shapes.data())));
    SessionParallel parallel(context);
    SessionWorkspace workspace(context, memory_);
    cpu::scale_shift(p, in.data<T>(0), in.data<T>(1), in.data<T>(2), p.has_residual ? in.data<T>(3) : nullptr,
                     y, parallel, workspace);
  }
};

template <class T>
class WinogradConvKernel final : public CpuKernel<WinogradConvOp> {
 public:
  WinogradConvKernel(const WinogradConvOp& op, const NodeInfo& info) : CpuKernel(op, info) {
    const auto w = info.constant_input(1);
    if (!w) return;
    const auto x = info.input_shape(0);
    const ConvProblem p = op_.static_problem(x ? &*x : nullptr, w->shape);
    const cpu::ConvAlgorithm algorithm = cpu::winograd_choose(p, sizeof(T));
    weights_ = cpu::WeightCache::process().get<cpu::WinogradWeights>(
        {sizeof(T), p.M, p.C, static_cast<int64_t>(algorithm)}, w->data,
        static_cast<size_t>(w->shape.elements()) * sizeof(T),
        [&] { return cpu::winograd_prepare(p, static_cast<const T*>(w->data), algorithm); });
  }

  void compute(const Context& context) const override {
    const Inputs in(context, input_count_);
    const ConvProblem p = op_.problem(in.shapes.data());
    T* y = static_cast<T*>(context.output(0, op_.output(in.shapes.data())));
    if (p.N * p.M * p.OH() * p.OW() == 0) return;
    SessionParallel parallel(context);
    SessionWorkspace workspace(context, memory_);
    const auto weights = weights_ ? weights_ : cpu::winograd_prepare(p, in.data<T>(1));
    cpu::winograd_conv(p, in.data<T>(0), *weights, in.data<T>(2), p.has_residual ? in.data<T>(3) : nullptr, y,
                       parallel, workspace);
  }

 private:
  std::shared_ptr<const cpu::WinogradWeights> weights_;  // null when W may change between runs
};

template <class T>
class FusedAttentionKernel final : public CpuKernel<FusedAttentionOp> {
 public:
  using CpuKernel::CpuKernel;
  void compute(const Context& context) const override {
    const Inputs in(context, input_count_);
    const AttentionProblem p = op_.problem(in.shapes.data());
    const Shape shape = op_.output(in.shapes.data());
    T* o = static_cast<T*>(context.output(0, shape));
    const auto elements = static_cast<size_t>(shape.elements());
    if (elements == 0) return;
    if (p.T == 0) {  // a product over no keys
      std::fill_n(o, elements, T(0));
      return;
    }
    SessionParallel parallel(context);
    SessionWorkspace workspace(context, memory_);
    const size_t mask = p.has_bias ? 4 : 3;
    cpu::fused_attention(p, in.data<T>(0), in.data<T>(1), in.data<T>(2), p.has_bias ? in.data<T>(3) : nullptr,
                         p.has_mask ? in.data<bool>(mask) : nullptr, o, parallel, workspace);
  }
};

template <class T>
class GroupNormKernel final : public CpuKernel<GroupNormOp> {
 public:
  using CpuKernel::CpuKernel;
  void compute(const Context& context) const override {
    const Inputs in(context, input_count_);
    const GroupNormProblem p = op_.problem(in.shapes.data());
    T* y = static_cast<T*>(context.output(0, op_.output(in.shapes.data())));
    SessionParallel parallel(context);
    SessionWorkspace workspace(context, memory_);
    cpu::group_norm(p, in.data<T>(0), in.data<T>(1), in.data<T>(2), y, parallel, workspace);
  }
};

template <class T>
class RowNormKernel final : public CpuKernel<RowNormOp> {
 public:
  using CpuKernel::CpuKernel;
  void compute(const Context& context) const override {
    const Inputs in(context, input_count_);
    const RowNormProblem p = op_.problem(in.shapes.data());
    const Shape shape = op_.output(in.shapes.data());
    T* y = static_cast<T*>(context.output(0, shape));
    T* sum = p.writes_sum ? static_cast<T*>(context.output(1, shape)) : nullptr;
    SessionParallel parallel(context);
    SessionWorkspace workspace(context, memory_);
    const size_t gamma = p.has_residual ? 2 : 1;
    cpu::row_norm(p, in.data<T>(0), p.has_residual ? in.data<T>(1) : nullptr, in.data<T>(gamma),
                  p.rms ? nullptr : in.data<T>(gamma + 1), y, sum, parallel, workspace);
  }
};

// One row of the table: an op's class and its kernel, for both element types.
template <class Op, template <class> class KernelOf>
void add(std::vector<OpDescription>& table, abi::Inplace inplace) {
  const auto add_type = [&](const Op& op, ElementType type, auto make) {
    OpDescription d = describe(op, type, nullptr);
    d.inplace = d.outputs == 1 ? inplace : abi::Inplace::kNone;
    d.create = make;
    table.push_back(std::move(d));
  };
  for (const Op& op : Op::all()) {
    add_type(op, ElementType::kFloat,
             [op](const NodeInfo& info) { return std::make_unique<KernelOf<float>>(op, info); });
    add_type(op, ElementType::kHalf,
             [op](const NodeInfo& info) { return std::make_unique<KernelOf<half>>(op, info); });
  }
}

}  // namespace

std::vector<OpDescription> cpu_kernels() {
  std::vector<OpDescription> table;
  add<ScaleShiftOp, ScaleShiftKernel>(table, abi::Inplace::kInput0);
  add<WinogradConvOp, WinogradConvKernel>(table, abi::Inplace::kNone);
  add<FusedAttentionOp, FusedAttentionKernel>(table, abi::Inplace::kNone);
  add<GroupNormOp, GroupNormKernel>(table, abi::Inplace::kInput0);
  add<RowNormOp, RowNormKernel>(table, abi::Inplace::kInput0);
  return table;
}

}  // namespace graphopt
