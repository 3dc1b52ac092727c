// GPU kernels of our domain: a node's attributes and the shapes of a call give a Problem, and that a program
// of launches. No synchronisation and no device allocation after creation, and nothing is shared by nodes but
// the loaded code.
#include <algorithm>
#include <map>
#include <set>

#include "device/devices.h"
#include "device/libraries/libraries.h"
#include "device/program.h"
#include "operators/attention/plan.h"
#include "operators/group_norm/plan.h"
#include "operators/implementations.h"
#include "operators/kernels.h"
#include "operators/linear/plan.h"
#include "operators/row_norm/plan.h"
#include "operators/scale_shift/plan.h"
#include "operators/winograd/plan.h"

namespace graphopt {
namespace {

using gpu::Program;
using gpu::Ref;

template <class Op>
class GpuKernel : public gpu::DeviceKernel {
 public:
  GpuKernel(const Op& op, const Node& node, gpu::Device& device)
      : DeviceKernel(device), op_(op), half_(node.type() == ElementType::kHalf) {
    op_.read(node);
  }

 protected:
  using Problem = typename Op::Problem;

  // Of a call whose outputs are set now.
  Problem problem(Call& call) const {
    const Shapes shapes(call.inputs);
    const Problem p = op_.problem(shapes);
    const Shape y = op_.output(shapes);
    for (size_t i = 0; i < op_.outputs(); ++i) call.set_output(i, y, call.inputs[0].type, Place::kDevice);
    return p;
  }

  Op op_;
  bool half_;
};

// An op whose plan follows from its problem alone: plan(problem, half, aligned, facts).
template <class Op, auto plan_of>
class PlannedKernel final : public GpuKernel<Op> {
 public:
  using GpuKernel<Op>::GpuKernel;

 protected:
  void plan(Call& call, Program& program) const override {
    const auto p = this->problem(call);
    program.launch(plan_of(p, this->half_, call.aligned(), this->device_.facts()), call);
  }
};

gpu::Plan scale_shift_plan(const ScaleShiftProblem& p, bool half, bool aligned, const gpu::DeviceFacts&) {
  return gpu::scale_shift_plan(p, half, aligned);
}
gpu::Plan fused_attention_plan(const AttentionProblem& p, bool half, bool aligned,
                               const gpu::DeviceFacts& facts) {
  return gpu::fused_attention_plan(p, half, aligned, facts);
}
using ScaleShiftKernel = PlannedKernel<ScaleShiftOp, scale_shift_plan>;
using GroupNormKernel = PlannedKernel<GroupNormOp, gpu::group_norm_plan>;
using RowNormKernel = PlannedKernel<RowNormOp, gpu::row_norm_plan>;
using FusedAttentionKernel = PlannedKernel<FusedAttentionOp, fused_attention_plan>;

// Constant weights are transformed when the kernel is created, once for each algorithm that the node's shapes
// may call for; the algorithm is chosen in each plan, from the actual N, H and W.
class WinogradConvKernel final : public GpuKernel<WinogradConvOp> {
 public:
  WinogradConvKernel(const WinogradConvOp& op, const Node& node, gpu::Device& device)
      : GpuKernel(op, node, device) {
    const auto w = node.constant(1);
    if (!w) return;
    const auto& x = node.inputs[0].shape;
    const ConvProblem p = op_.static_problem(x ? &*x : nullptr, w->shape);
    for (const gpu::ConvAlgorithm algorithm : algorithms(p)) {
      const gpu::Plan prepare = gpu::winograd_conv_prepare_plan(p, half_, algorithm);
      Weights& weights = weights_[algorithm];
      weights.device = &device_;
      weights.memory = device_.allocate(static_cast<size_t>(prepare.weights));
      const void* inputs[] = {nullptr, w->data};
      device_.run(prepare, {inputs, nullptr, nullptr, weights.memory}, nullptr);
    }
    device_.synchronize(nullptr);
  }

 protected:
  void plan(Call& call, Program& program) const override {
    const ConvProblem p = problem(call);
    if (p.N * p.M * p.OH() * p.OW() == 0) return;
    if (weights_.empty()) {
      const gpu::ConvChoice choice = gpu::choose_conv(p, half_, device_.facts());
      gpu::Plan prepare = gpu::winograd_conv_prepare_plan(p, half_, choice.algorithm);
      const Ref weights = program.reserve(prepare.weights);
      program.launch(std::move(prepare), call, weights);
      program.launch(gpu::winograd_conv_plan(p, half_, call.aligned(), choice, device_.facts()), call,
                     weights);
      return;
    }
    const Weights* weights = nullptr;
    gpu::ConvChoice best;
    for (const auto& [algorithm, prepared] : weights_) {
      const gpu::ConvChoice choice = gpu::choose_conv(p, half_, device_.facts(), algorithm);
      if (weights != nullptr && choice.seconds >= best.seconds) continue;
      weights = &prepared;
      best = choice;
    }
    program.launch(gpu::winograd_conv_plan(p, half_, call.aligned(), best, device_.facts()), call,
                   Ref::held(weights->memory));
  }

 private:
  struct Weights {
    gpu::Device* device = nullptr;
    void* memory = nullptr;
    Weights() = default;
    Weights(const Weights&) = delete;
    Weights& operator=(const Weights&) = delete;
    ~Weights() {
      if (memory != nullptr) device->free(memory);
    }
  };

  // Those that the known part of the shape leaves open: a dim of 0 is unknown.
  std::set<gpu::ConvAlgorithm> algorithms(ConvProblem p) const {
    if (p.H == 0 || p.W == 0) {
      if (gpu::has_matrix_conv(half_, device_.facts())) {
        return {gpu::ConvAlgorithm::kWinograd4, gpu::ConvAlgorithm::kMatrix};
      }
      return {gpu::ConvAlgorithm::kWinograd4, gpu::ConvAlgorithm::kWinograd2};
    }
    std::set<gpu::ConvAlgorithm> best;
    const std::vector<int64_t> batches = p.N > 0 ? std::vector<int64_t>{p.N} : std::vector<int64_t>{1, 8, 64};
    for (const int64_t N : batches) {
      p.N = N;
      best.insert(gpu::choose_conv(p, half_, device_.facts()).algorithm);
    }
    // For batches that are too large for it.
    if (batches.size() > 1 && best.count(gpu::ConvAlgorithm::kMatrix) > 0) {
      best.insert(gpu::ConvAlgorithm::kWinograd4);
    }
    return best;
  }

  std::map<gpu::ConvAlgorithm, Weights> weights_;  // empty when W may change between runs
};

// One node's product.
struct LinearWork {
  const LinearProblem& p;
  bool half;
  const Call& call;
  Program& program;
  gpu::Device& device;
  size_t library_bytes = 0;
};

const char* refuse_epilogue(LinearWork& work) {
  if (work.p.K == 0) return "there is nothing to add up";
  if (work.call.alignment < gpu::BlasLt::kAlignment) return "memory is not aligned to 256 bytes";
  gpu::BlasLt* library = gpu::blas_lt(work.device);
  if (library == nullptr) return "it is not there";
  const auto bytes = library->linear_workspace(work.p, work.half);
  if (!bytes) return "it has no such product";
  work.library_bytes = *bytes;
  return nullptr;
}

void plan_epilogue(LinearWork& work) {
  const Ref workspace =
      work.library_bytes > 0 ? work.program.reserve(static_cast<int64_t>(work.library_bytes)) : Ref();
  work.program.call(
      [library = gpu::blas_lt(work.device), p = work.p, half = work.half](const Program::Addresses& at) {
        return library->linear(p, half, at.inputs[0], at.inputs[1], at.inputs[2], at.inputs[3], at.outputs[0],
                               at.outputs[1], at.stream);
      },
      {Ref::input(0), Ref::input(1), Ref::input(2), work.p.has_residual ? Ref::input(3) : Ref()},
      {Ref::output(0), workspace});
}

const char* refuse_library(LinearWork& work) {
  if (work.p.K == 0) return "there is nothing to add up";
  return gpu::blas(work.device) == nullptr ? "it is not there" : nullptr;
}

void plan_library(LinearWork& work) {
  work.program.call(
      [library = gpu::blas(work.device), product = gpu::linear_product(work.p),
       half = work.half](const Program::Addresses& at) {
        return library->gemm(product, half, at.inputs[0], at.inputs[1], at.outputs[0], at.stream);
      },
      {Ref::input(0), Ref::input(1)}, {Ref::output(0)});
  work.program.launch(gpu::linear_rest_plan(work.p, work.half, work.call.aligned()), work.call);
}

void plan_own(LinearWork& work) {
  work.program.launch(gpu::linear_plan(work.p, work.half, work.call.aligned(), work.device.facts()),
                      work.call);
}

constexpr Implementation<LinearWork> kLinear[] = {
    {"cuBLASLt or hipBLASLt", refuse_epilogue, plan_epilogue},
    {"cuBLAS or rocBLAS, and one more launch", refuse_library, plan_library},
    {"a product of our own", take_all<LinearWork>, plan_own},
};

class LinearKernel final : public GpuKernel<LinearOp> {
 public:
  LinearKernel(const LinearOp& op, const Node& node, gpu::Device& device)
      : GpuKernel(op, node, device), choice_(node) {}

 protected:
  void plan(Call& call, Program& program) const override {
    const LinearProblem p = problem(call);
    if (p.rows * p.N == 0) return;
    LinearWork work{p, half_, call, program, device_};
    program.implementation = choice_.plan(kLinear, work, call);
  }

 private:
  Choice choice_;
};

// `device` is called when a kernel is created.
template <class Op, class KernelOfOp, class Device>
void add(Table& table, const char* provider, const std::string& arch, Device device, Reuse reuse) {
  for (const Op& op : Op::all()) {
    Registration& r = table.emplace_back(describe(op));
    r.provider = provider;
    r.device = arch;
    if (r.outputs == 1) r.reuse = reuse;
    r.create = [op, device](const Node& node) { return std::make_unique<KernelOfOp>(op, node, device()); };
  }
}

template <class Device>
Table kernels(const char* provider, const std::string& arch, Device device) {
  Table table;
  add<ScaleShiftOp, ScaleShiftKernel>(table, provider, arch, device, Reuse::kInplace);
  add<WinogradConvOp, WinogradConvKernel>(table, provider, arch, device, Reuse::kNone);
  add<FusedAttentionOp, FusedAttentionKernel>(table, provider, arch, device, Reuse::kNone);
  add<GroupNormOp, GroupNormKernel>(table, provider, arch, device, Reuse::kInplace);
  add<RowNormOp, RowNormKernel>(table, provider, arch, device, Reuse::kInplace);
  return table;
}

}  // namespace

Table gpu_kernels(const char* provider, gpu::Device& device) {
  const auto get = [&device]() -> gpu::Device& { return device; };
  Table table = kernels(provider, device.facts().arch, get);
  const size_t others = table.size();
  add<LinearOp, LinearKernel>(table, provider, device.facts().arch, get, Reuse::kNone);
  for (size_t i = others; i < table.size(); ++i) table[i].implementations = names(kLinear);
  return table;
}

Table rocm_kernels() {
  const gpu::DeviceFacts* current = gpu::usable_rocm_device();
  if (current == nullptr) return {};
  const char* provider = gpu::host_kernels() != nullptr ? nullptr : "ROCMExecutionProvider";
  return kernels(provider, current->arch, gpu::rocm_device);
}

}  // namespace graphopt
