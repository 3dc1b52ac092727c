#include "operators/conv/winograd/op.h"

#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "device/device_weights.h"
#include "operators/conv/winograd/cpu.h"
#include "operators/conv/winograd/plan.h"
#include "operators/kernel_bases.h"
#include "operators/normalization/scale_shift/op.h"

namespace graphopt {
std::vector<WinogradConvOp> WinogradConvOp::all() { return with_tails_and_slopes<WinogradConvOp>(); }

void WinogradConvOp::read(const Node& node) {
  TailedOperator::read(node);
  pads_ = get_sizes(node, "pads", 4, 0);  // top, left, bottom, right
}

ConvolutionProblem WinogradConvOp::static_problem(const std::optional<Shape>& x, const Shape& w) const {
  throw_if(w.rank() != 4 || w[2] != 3 || w[3] != 3, "W must be [M,C,3,3], got ", w);
  if (x && x->rank() != 4) throw Error("X must be [N,C,H,W], got ", *x);
  const auto size = [&x](size_t i) { return x ? std::max<int64_t>((*x)[i], 0) : 0; };
  ConvolutionProblem p = convolution_3x3(size(0), w[1], size(2), size(3), w[0], pads_);
  p.has_residual = tail_.has_residual;
  p.act = tail_.act;
  p.has_slopes = tail_.has_slopes;
  return p;
}

ConvolutionProblem WinogradConvOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  const Shape& w = inputs[1];
  const ConvolutionProblem p = static_problem(x, w);
  throw_if(x[1] != p.C, "X ", x, " has ", x[1], " channels, W ", w, " requires ", p.C);
  throw_if(p.OH() < 0 || p.OW() < 0, "X ", x, " with its pads is smaller than the 3x3 window");
  require_shape("B", inputs[2], {p.M});
  const Shape y = {p.N, p.M, p.OH(), p.OW()};
  require_residual(inputs, "Y", y);
  require_slopes(inputs, y);
  return p;
}

Shape WinogradConvOp::output(const Shapes& inputs) const {
  const ConvolutionProblem p = static_problem(inputs[0], inputs[1]);
  return {p.N, p.M, p.OH(), p.OW()};
}

void WinogradConvOp::infer(const ShapeInference& node) const {
  const SymbolicShape x = node.input(0);
  const SymbolicShape w = node.input(1);
  const auto pads = find_sizes(node, "pads", 4, 0);
  if (x.size() != 4 || w.size() != 4 || !pads) return;
  // A symbol means the same size in the entire model, and so does a symbol derived from it.
  const auto spatial = [](const Dim& in, int64_t growth) {
    if (in.known()) return Dim{in.value + growth, ""};
    if (in.symbol.empty() || growth == 0) return in;
    return Dim{-1, "(" + in.symbol + ")" + (growth > 0 ? "+" : "") + std::to_string(growth)};
  };
  const SymbolicShape y = {x[0], w[0], spatial(x[2], (*pads)[0] + (*pads)[2] - 2),
                           spatial(x[3], (*pads)[1] + (*pads)[3] - 2)};
  node.set_output(0, y);
}

namespace {

// --- On the CPU

struct CpuWork {
  const ConvolutionProblem& p;  // N, H and W are 0 if unknown
  bool half;
};

// With few channels, the transforms cost more time than the GEMMs save. F(2x2) is the only Winograd algorithm for
// float16; for each pixel, it transforms almost twice as many elements as F(4x4).
bool has_few_channels(const CpuWork& work) { return work.p.C < (work.half ? 8 : 3); }

double transformed_bytes(const ConvolutionProblem& p, int64_t tile) {
  return static_cast<double>((tile + 2) * (tile + 2)) * static_cast<double>(p.C * p.M) * sizeof(float);
}

// Returns the estimated cost of the GEMMs: their number of multiplications, divided by C M. Each point of a transformed
// tile has one GEMM. With few tiles, reading the weights takes most of the time. A GEMM then costs as much as for 8
// tiles, or with AVX-512 as for 20 tiles if the weights exceed a last-level cache (docs/measurements/winograd_cpu.md).
double gemm_cost(const ConvolutionProblem& p, int64_t tile) {
  constexpr double kLastLevelCache = 12 << 20;
  const auto points = static_cast<double>((tile + 2) * (tile + 2));
  const int64_t tiles =
      std::max<int64_t>(p.N, 1) * ((p.OH() + tile - 1) / tile) * ((p.OW() + tile - 1) / tile);
  const bool far = transformed_bytes(p, tile) > kLastLevelCache && cpu::isa() >= cpu::Isa::kAvx512;
  return points * std::max(static_cast<double>(tiles), far ? 20.0 : 8.0);
}

// Completely transformed weights are four times as large as the original weights. A network with many of them would
// take more than twice as much memory as in ONNX Runtime. Half-transformed weights are half as large as
// completely transformed ones; with them a node takes 0.9 to 1.3 times as long (docs/measurements/winograd_cpu.md).
constexpr double kMostTransformed = 24 << 20;  // the most bytes of completely transformed weights for a node

const char* refuse_f4x4_rows(CpuWork& work) {
  if (work.half) return "the rounding error is too large for float16";
  if (has_few_channels(work)) return "too few channels to pay for the transforms";
  if (work.p.H() == 0 || work.p.W() == 0) return nullptr;
  // F(2x2) has less than half the weights of F(4x4) and a smaller error. It is therefore preferred if the costs are
  // nearly equal.
  return gemm_cost(work.p, 4) < 0.9 * gemm_cost(work.p, 2) ? nullptr : "F(2x2, 3x3) should be faster";
}

const char* refuse_f4x4(CpuWork& work) {
  if (const char* why = refuse_f4x4_rows(work)) return why;
  return transformed_bytes(work.p, 4) > kMostTransformed
             ? "the transformed weights would need too much memory"
             : nullptr;
}

const char* refuse_f2x2(CpuWork& work) {
  return has_few_channels(work) ? "too few channels to pay for the transforms" : nullptr;
}

// In the order of cpu::ConvAlgorithm.
constexpr Implementation<CpuWork> kCpuAlgorithms[] = {
    {"F(4x4, 3x3)", refuse_f4x4},
    {"F(4x4, 3x3), half-transformed weights", refuse_f4x4_rows},
    {"F(2x2, 3x3)", refuse_f2x2},
    {"im2col GEMM", accept_all<CpuWork>},
};

template <class T>
class WinogradConvCpu final : public PackedCpuKernel<WinogradConvOp, cpu::winograd_conv_kernels<T>> {
 public:
  WinogradConvCpu(const WinogradConvOp& op, const Node& node)
      : WinogradConvCpu::PackedCpuKernel(op, node), choice_(node) {}
  static Implementations implementations() { return summarize(kCpuAlgorithms); }

 private:
  cpu::ConvAlgorithm choose_algorithm(const ConvolutionProblem& p) const override {
    CpuWork work{p, sizeof(T) == 2};
    return static_cast<cpu::ConvAlgorithm>(choice_.choose(kCpuAlgorithms, work, nullptr));
  }
  std::string layout(const ConvolutionProblem&, cpu::ConvAlgorithm algorithm) const override {
    return std::string("3x3 weights for ") + kCpuAlgorithms[static_cast<int>(algorithm)].name;
  }

  Choice choice_;
};

// --- On a GPU

using gpu::ConvAlgorithm;

// The weights on the device, transformed for each algorithm.
using AllWeights = std::map<ConvAlgorithm, std::shared_ptr<void>>;

struct WinogradWork : GpuWork<ConvolutionProblem> {
  const AllWeights& weights;  // empty when W may change between runs
  gpu::ConvChoice fastest;
};

// A required algorithm (Call::only) need not be the fastest.
template <ConvAlgorithm kAlgorithm>
const char* refuse(WinogradWork& work) {
  const gpu::DeviceFacts& facts = work.facts();
  if (kAlgorithm == ConvAlgorithm::kMatrix && !gpu::has_matrix_conv(work.half, facts)) {
    return "not float16, or no matrix units";
  }
  if (work.call.only < 0)
    return work.fastest.algorithm == kAlgorithm ? nullptr : "another algorithm should be faster";
  work.fastest = gpu::choose_conv(work.p, work.half, facts, kAlgorithm);
  return std::isfinite(work.fastest.seconds) ? nullptr : "X is too large";
}

void plan_fastest(WinogradWork& work) {
  const auto found = work.weights.find(work.fastest.algorithm);
  Ref weights;
  if (found != work.weights.end()) {
    weights = Ref::owned(found->second.get());
  } else {
    gpu::Plan prepare = gpu::winograd_conv_prepare_plan(work.p, work.half, work.fastest.algorithm);
    weights = work.program.reserve(prepare.weights);
    work.program.launch(std::move(prepare), work.call, weights);
  }
  work.program.launch(
      gpu::winograd_conv_plan(work.p, work.half, work.call.aligned(), work.fastest, work.facts()), work.call,
      weights);
}

constexpr Implementation<WinogradWork> kAlgorithms[] = {
    {"implicit GEMM on the matrix units", refuse<ConvAlgorithm::kMatrix>, plan_fastest},
    {"implicit GEMM", refuse<ConvAlgorithm::kImplicit>, plan_fastest},
    {"F(2x2, 3x3)", refuse<ConvAlgorithm::kWinograd2>, plan_fastest},
    {"F(4x4, 3x3)", refuse<ConvAlgorithm::kWinograd4>, plan_fastest},
};

// Constant weights are transformed once for each algorithm that the node's shapes may select, and shared with the other
// sessions of the process. Each plan chooses the algorithm from the actual N, H and W.
class WinogradConvGpu final : public GpuKernelOf<WinogradConvOp> {
 public:
  using GpuKernelOf::GpuKernelOf;

  void prepare(const Node& node) override {
    const auto w = node.constant(1);
    if (!w) return;
    const ConvolutionProblem p = op_.static_problem(node.inputs[0].shape, w->shape);
    for (const ConvAlgorithm algorithm : algorithms(p)) {
      const gpu::Plan prepare = gpu::winograd_conv_prepare_plan(p, half_, algorithm);
      const std::string layout = "3x3 weights, algorithm " + std::to_string(static_cast<int>(algorithm)) +
                                 ", of " + element_type_name(w->type) + w->shape.text();
      weights_[algorithm] = gpu::DeviceWeights::process().get(
          device_, layout, static_cast<size_t>(prepare.weights), [&](void* memory, void* stream) {
            const void* inputs[] = {nullptr, w->data};
            device_.run(prepare, {inputs, nullptr, nullptr, memory}, stream);
          });
    }
  }
  static Implementations implementations() { return summarize(kAlgorithms); }

 private:
  void plan(Call& call, Program& program) const override {
    const auto p = problem(call);
    if (!p) return;
    WinogradWork work{{*p, half_, call, program}, weights_, fastest(*p)};
    program.implementation = choice_.plan(kAlgorithms, work, call);
    if (!p->has_slopes) return;
    const Ref none = Ref::owned(gpu::constant_vector(device_, 0.0f, half_, p->M));
    program.launch(gpu::shift_prelu_plan({p->N, p->M, p->out_size(), false, {}}, half_, call.aligned()),
                   {Ref::output(0), Ref::input(op_.slopes()), none, Ref()}, {Ref::output(0)});
  }

  // Returns the fastest algorithm among those with transformed weights.
  gpu::ConvChoice fastest(const ConvolutionProblem& p) const {
    if (weights_.empty()) return gpu::choose_conv(p, half_, device_.facts());
    std::optional<gpu::ConvChoice> best;
    for (const auto& [algorithm, weights] : weights_) {
      const gpu::ConvChoice choice = gpu::choose_conv(p, half_, device_.facts(), algorithm);
      if (!best || choice.seconds < best->seconds) best = choice;
    }
    return *best;
  }

  // Returns the algorithms that may be fastest. Unknown dims of p are 0.
  std::set<ConvAlgorithm> algorithms(ConvolutionProblem p) const {
    if (p.H() == 0 || p.W() == 0) {
      if (gpu::has_matrix_conv(half_, device_.facts())) {
        return {ConvAlgorithm::kWinograd4, ConvAlgorithm::kMatrix};
      }
      return {ConvAlgorithm::kWinograd4, ConvAlgorithm::kWinograd2};
    }
    std::set<ConvAlgorithm> best;
    const std::vector<int64_t> batches = p.N > 0 ? std::vector<int64_t>{p.N} : std::vector<int64_t>{1, 8, 64};
    for (const int64_t N : batches) {
      p.N = N;
      best.insert(gpu::choose_conv(p, half_, device_.facts()).algorithm);
    }
    // A fallback for batches that are too large for kMatrix.
    if (batches.size() > 1 && best.count(ConvAlgorithm::kMatrix) > 0) {
      best.insert(ConvAlgorithm::kWinograd4);
    }
    return best;
  }

  AllWeights weights_;
};

}  // namespace

void add_winograd(Kernels& kernels) {
  kernels.add_cpu<WinogradConvOp, WinogradConvCpu>();
  kernels.add_gpu<WinogradConvOp, WinogradConvGpu>(Where::kGpu);
}

}  // namespace graphopt
