// GPU kernels as ONNX Runtime calls them: tensors in, a Problem, a launch plan, launches on the node's
// stream. No synchronisation and no device allocation in compute(), and nothing is shared by nodes but the
// loaded code.
#include <algorithm>
#include <map>
#include <set>

#include "gpu/devices.h"
#include "gpu/fused_attention_plan.h"
#include "gpu/group_norm_plan.h"
#include "gpu/libraries.h"
#include "gpu/linear_plan.h"
#include "gpu/node_scope.h"
#include "gpu/row_norm_plan.h"
#include "gpu/scale_shift_plan.h"
#include "gpu/winograd_conv_plan.h"
#include "kernels.h"
#include "ops/schema.h"

namespace graphopt {
namespace {

using abi::Context;
using abi::ElementType;
using abi::Error;
using abi::NodeInfo;
using abi::OpDescription;
using abi::Shape;

constexpr size_t kMaxBuffers = 8;
constexpr size_t kAlignment = 256;

size_t aligned_bytes(int64_t bytes) {
  return (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
}

// One Compute call.
struct Run {
  const Context& context;
  gpu::Device& device;
  gpu::NodeScope scope;
  Shape shapes[kMaxBuffers];
  const void* inputs[kMaxBuffers] = {};
  void* outputs[2] = {};

  Run(const Context& c, gpu::Device& d, const std::string& node, size_t input_count)
      : context(c), device(d), scope(d, node) {
    const size_t given = context.input_count();
    if (given != input_count) {
      throw Error("needs " + std::to_string(input_count) + " inputs, got " + std::to_string(given));
    }
    for (size_t i = 0; i < input_count; ++i) {
      const abi::Tensor tensor = context.input(i);
      inputs[i] = tensor.data;
      shapes[i] = tensor.shape;
    }
  }

  // Whether 16-byte loads and stores may be used.
  bool aligned() const {
    const auto all = [](const auto* begin, const auto* end) {
      return std::all_of(begin, end, [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
    };
    return all(std::begin(inputs), std::end(inputs)) && all(std::begin(outputs), std::end(outputs));
  }

  // `prepare`, if not null, runs first and its weights live in scratch memory.
  void enqueue(const gpu::Plan& plan, const abi::HostMemory& host, void* weights, const gpu::Plan* prepare) {
    size_t bytes = 0;
    for (const int64_t size : plan.workspace) bytes += aligned_bytes(size);
    if (prepare != nullptr) bytes += aligned_bytes(prepare->weights);
    std::optional<abi::DeviceScratch> scratch;
    std::optional<abi::HostArena> arena;
    char* next = nullptr;
    void* stream = context.gpu_stream();
    if (bytes > 0) {
      // On the CPU provider, where there are no streams, the runtime's scratch memory crashes old versions.
      if (device.backend() == gpu::Backend::kHost && stream == nullptr) {
        next = static_cast<char*>(arena.emplace(context, host).allocate(bytes));
      } else {
        next = static_cast<char*>(scratch.emplace(context, bytes).data());
      }
    }
    void* workspace[kMaxBuffers] = {};
    for (size_t i = 0; i < plan.workspace.size(); ++i) {
      workspace[i] = next;
      next += aligned_bytes(plan.workspace[i]);
    }
    if (prepare != nullptr) {
      weights = next;
      device.run(*prepare, {inputs, outputs, workspace, weights}, stream);
    }
    device.run(plan, {inputs, outputs, workspace, weights}, stream);
    scope.finish(stream);
  }
};

template <class Op>
class GpuKernel : public abi::Kernel {
 public:
  GpuKernel(const Op& op, const NodeInfo& info, gpu::Device& device)
      : op_(op),
        node_(info.name()),
        input_count_(op.inputs().size()),
        half_(info.element_type() == ElementType::kHalf),
        host_(info.api()),
        device_(device) {
    op_.read(info);
  }

 protected:
  Op op_;
  std::string node_;
  size_t input_count_;
  bool half_;
  abi::HostMemory host_;
  gpu::Device& device_;
};

// An op whose plan follows from its problem alone: plan(problem, half, aligned, facts).
template <class Op, auto plan>
class PlannedKernel final : public GpuKernel<Op> {
 public:
  using GpuKernel<Op>::GpuKernel;
  void compute(const Context& context) const override {
    Run run(context, this->device_, this->node_, this->input_count_);
    const auto p = this->op_.problem(run.shapes);
    const Shape y = this->op_.output(run.shapes);
    for (size_t i = 0; i < this->op_.outputs(); ++i) run.outputs[i] = context.output(i, y);
    run.enqueue(plan(p, this->half_, run.aligned(), this->device_.facts()), this->host_, nullptr, nullptr);
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
// may call for; the algorithm is chosen in each run, from the actual N, H and W.
class WinogradConvKernel final : public GpuKernel<WinogradConvOp> {
 public:
  WinogradConvKernel(const WinogradConvOp& op, const NodeInfo& info, gpu::Device& device)
      : GpuKernel(op, info, device) {
    const auto w = info.constant_input(1);
    if (!w) return;
    const auto x = info.input_shape(0);
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

  void compute(const Context& context) const override {
    Run run(context, device_, node_, input_count_);
    const ConvProblem p = op_.problem(run.shapes);
    run.outputs[0] = context.output(0, op_.output(run.shapes));
    if (p.N * p.M * p.OH() * p.OW() == 0) return;
    if (weights_.empty()) {
      const gpu::ConvChoice choice = gpu::choose_conv(p, half_, device_.facts());
      const gpu::Plan prepare = gpu::winograd_conv_prepare_plan(p, half_, choice.algorithm);
      run.enqueue(gpu::winograd_conv_plan(p, half_, run.aligned(), choice, device_.facts()), host_, nullptr,
                  &prepare);
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
    run.enqueue(gpu::winograd_conv_plan(p, half_, run.aligned(), best, device_.facts()), host_,
                weights->memory, nullptr);
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

class LinearKernel final : public GpuKernel<LinearOp> {
 public:
  using GpuKernel::GpuKernel;
  void compute(const Context& context) const override {
    Run run(context, device_, node_, input_count_);
    const LinearProblem p = op_.problem(run.shapes);
    run.outputs[0] = context.output(0, op_.output(run.shapes));
    if (p.rows * p.N == 0) return;
    if (with_epilogue(run, p)) return;
    gpu::Blas* blas = p.K > 0 ? gpu::blas(device_) : nullptr;
    if (blas == nullptr) {
      run.enqueue(gpu::linear_plan(p, half_, run.aligned(), device_.facts()), host_, nullptr, nullptr);
      return;
    }
    blas->gemm(gpu::linear_product(p), half_, run.inputs[0], run.inputs[1], run.outputs[0],
               context.gpu_stream());
    run.enqueue(gpu::linear_rest_plan(p, half_, run.aligned()), host_, nullptr, nullptr);
  }

 private:
  // In one launch of the vendor's library; false when it has none.
  bool with_epilogue(Run& run, const LinearProblem& p) const {
    gpu::BlasLt* library = p.K > 0 ? gpu::blas_lt(device_) : nullptr;
    if (library == nullptr) return false;
    std::optional<abi::DeviceScratch> memory;
    void* stream = run.context.gpu_stream();
    const auto scratch = [&](size_t bytes) { return memory.emplace(run.context, bytes).data(); };
    if (!library->linear(p, half_, run.inputs[0], run.inputs[1], run.inputs[2],
                         p.has_residual ? run.inputs[3] : nullptr, run.outputs[0], scratch, stream)) {
      return false;
    }
    run.scope.finish(stream);
    return true;
  }
};

// `device` is called when a kernel is created.
template <class Op, class Kernel, class Device>
void add(std::vector<OpDescription>& table, const char* provider, const std::string& arch, Device device,
         abi::Inplace inplace) {
  for (const Op& op : Op::all()) {
    for (const ElementType type : {ElementType::kFloat, ElementType::kHalf}) {
      OpDescription d = describe(op, type, provider);
      d.device = arch;
      d.inplace = d.outputs == 1 ? inplace : abi::Inplace::kNone;
      d.create = [op, device](const NodeInfo& info) { return std::make_unique<Kernel>(op, info, device()); };
      table.push_back(std::move(d));
    }
  }
}

template <class Device>
std::vector<OpDescription> kernels(const char* provider, const std::string& arch, Device device) {
  std::vector<OpDescription> table;
  add<ScaleShiftOp, ScaleShiftKernel>(table, provider, arch, device, abi::Inplace::kInput0);
  add<WinogradConvOp, WinogradConvKernel>(table, provider, arch, device, abi::Inplace::kNone);
  add<FusedAttentionOp, FusedAttentionKernel>(table, provider, arch, device, abi::Inplace::kNone);
  add<GroupNormOp, GroupNormKernel>(table, provider, arch, device, abi::Inplace::kInput0);
  add<RowNormOp, RowNormKernel>(table, provider, arch, device, abi::Inplace::kInput0);
  return table;
}

}  // namespace

std::vector<OpDescription> gpu_kernels(const char* provider, gpu::Device& device) {
  const auto get = [&device]() -> gpu::Device& { return device; };
  std::vector<OpDescription> table = kernels(provider, device.facts().arch, get);
  add<LinearOp, LinearKernel>(table, provider, device.facts().arch, get, abi::Inplace::kNone);
  return table;
}

std::vector<OpDescription> rocm_kernels() {
  const gpu::Device* current = gpu::usable_rocm_device();
  if (current == nullptr) return {};
  const char* provider = gpu::host_kernels() != nullptr ? nullptr : "ROCMExecutionProvider";
  return kernels(provider, current->facts().arch, gpu::rocm_device);
}

}  // namespace graphopt
