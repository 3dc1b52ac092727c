#include "operators/winograd/op.h"

#include <cmath>
#include <map>
#include <set>

#include "operators/room.h"
#include "operators/winograd/cpu.h"
#include "operators/winograd/plan.h"

namespace graphopt {

std::vector<WinogradConvOp> WinogradConvOp::all() {
  std::vector<WinogradConvOp> ops;
  for (bool add : {false, true}) {
    for (ActivationKind kind : all_activations()) {
      WinogradConvOp op;
      op.add_ = add;
      op.act_.kind = kind;
      ops.push_back(op);
    }
  }
  return ops;
}

std::string WinogradConvOp::name() const {
  return std::string("WinogradConv") + (add_ ? "Add" : "") + activation_suffix(act_.kind);
}

std::vector<Operand> WinogradConvOp::inputs() const {
  return std::vector<Operand>(add_ ? 4 : 3, Operand::kTensor);
}

void WinogradConvOp::read(const Node& node) {
  act_ = read_activation(act_.kind, node);
  pads_ = node.get_ints("pads");
  bool valid = pads_.size() == 4;
  for (int64_t pad : pads_) valid = valid && pad >= 0;
  if (!valid) throw Error("attribute 'pads' must be [top, left, bottom, right], all >= 0");
}

ConvProblem WinogradConvOp::static_problem(const std::optional<Shape>& x, const Shape& w) const {
  if (w.rank() != 4 || w[2] != 3 || w[3] != 3) throw Error("W must be [M,C,3,3], got " + w.text());
  ConvProblem p;
  p.M = w[0];
  p.C = w[1];
  if (x) {
    if (x->rank() != 4) throw Error("X must be [N,C,H,W], got " + x->text());
    p.N = std::max<int64_t>((*x)[0], 0);
    p.H = std::max<int64_t>((*x)[2], 0);
    p.W = std::max<int64_t>((*x)[3], 0);
  }
  p.pad_top = pads_[0];
  p.pad_left = pads_[1];
  p.pad_bottom = pads_[2];
  p.pad_right = pads_[3];
  p.has_residual = add_;
  p.act = act_;
  return p;
}

ConvProblem WinogradConvOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  const Shape& w = inputs[1];
  const ConvProblem p = static_problem(x, w);
  if (x[1] != p.C) {
    throw Error("X " + x.text() + " has " + std::to_string(x[1]) + " channels, W " + w.text() + " wants " +
                std::to_string(p.C));
  }
  if (p.OH() < 0 || p.OW() < 0)
    throw Error("X " + x.text() + " with its pads is smaller than the 3x3 window");
  const Shape bias = {p.M};
  if (inputs[2] != bias) throw Error("B must be " + bias.text() + ", got " + inputs[2].text());
  const Shape y = {p.N, p.M, p.OH(), p.OW()};
  if (add_ && inputs[3] != y) throw Error("R must be like Y " + y.text() + ", got " + inputs[3].text());
  return p;
}

Shape WinogradConvOp::output(const Shapes& inputs) const {
  const ConvProblem p = static_problem(inputs[0], inputs[1]);
  return {p.N, p.M, p.OH(), p.OW()};
}

void WinogradConvOp::infer(const ShapeInference& node) const {
  const SymbolicShape x = node.input(0);
  const SymbolicShape w = node.input(1);
  const std::vector<int64_t> pads = node.get_ints("pads");
  if (x.size() != 4 || w.size() != 4 || pads.size() != 4) return;
  // The same symbol means the same size in a whole model, so a symbol made from one is as good as one.
  const auto spatial = [](const Dim& in, int64_t growth) {
    if (in.known()) return Dim{in.value + growth, ""};
    if (in.symbol.empty() || growth == 0) return in;
    return Dim{-1, "(" + in.symbol + ")" + (growth > 0 ? "+" : "") + std::to_string(growth)};
  };
  const SymbolicShape y = {x[0], w[0], spatial(x[2], pads[0] + pads[2] - 2),
                           spatial(x[3], pads[1] + pads[3] - 2)};
  node.set_output(0, y);
}

namespace {

template <class T>
class WinogradConvCpu final : public PackedCpuKernel<WinogradConvOp> {
 public:
  using PackedCpuKernel::PackedCpuKernel;

 private:
  cpu::ConvAlgorithm algorithm(const ConvProblem& p) const {
    return cpu::winograd_choose(layout_problem(p), sizeof(T));
  }
  std::string layout(const ConvProblem& p) const override {
    return "3x3 " + std::to_string(static_cast<int>(algorithm(p)));
  }
  size_t packed_bytes(const ConvProblem& p) const override {
    return cpu::winograd_weights<T>(p, algorithm(p));
  }
  void pack(const ConvProblem& p, const Tensor& w, void* packed) const override {
    cpu::winograd_prepare(p, algorithm(p), w.as<const T>(), packed);
  }
  size_t scratch(const ConvProblem& p, size_t lanes) const override {
    return cpu::winograd_workspace<T>(p, algorithm(p), lanes);
  }
  void compute(const ConvProblem& p, const Call& call, const void* packed, void* scratch) const override {
    cpu::winograd_conv(p, algorithm(p), data<T>(call, 0), packed, data<T>(call, 2),
                       p.has_residual ? data<T>(call, 3) : nullptr, call.outputs[0].as<T>(), *call.parallel,
                       scratch);
  }
};

using gpu::ConvAlgorithm;

// Transformed for one algorithm, on the device.
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
using AllWeights = std::map<ConvAlgorithm, Weights>;

struct Work : GpuWork<ConvProblem> {
  const AllWeights& weights;  // empty when W may change between runs
  gpu::ConvChoice fastest;
};

// An algorithm that is insisted on need not be the fastest.
template <ConvAlgorithm kAlgorithm>
const char* refuse(Work& work) {
  const gpu::DeviceFacts& facts = work.device.facts();
  if (kAlgorithm == ConvAlgorithm::kMatrix && !gpu::has_matrix_conv(work.half, facts)) {
    return "it is not in float16, or there are no matrix units for it";
  }
  if (work.call.only < 0) return work.fastest.algorithm == kAlgorithm ? nullptr : "another should be faster";
  work.fastest = gpu::choose_conv(work.p, work.half, facts, kAlgorithm);
  return std::isfinite(work.fastest.seconds) ? nullptr : "X is too large for it";
}

void plan_fastest(Work& work) {
  const auto found = work.weights.find(work.fastest.algorithm);
  Ref weights;
  if (found != work.weights.end()) {
    weights = Ref::held(found->second.memory);
  } else {
    gpu::Plan prepare = gpu::winograd_conv_prepare_plan(work.p, work.half, work.fastest.algorithm);
    weights = work.program.reserve(prepare.weights);
    work.program.launch(std::move(prepare), work.call, weights);
  }
  work.program.launch(
      gpu::winograd_conv_plan(work.p, work.half, work.call.aligned(), work.fastest, work.device.facts()),
      work.call, weights);
}

constexpr Implementation<Work> kAlgorithms[] = {
    {"an implicit product on the matrix units", refuse<ConvAlgorithm::kMatrix>, plan_fastest},
    {"an implicit product", refuse<ConvAlgorithm::kImplicit>, plan_fastest},
    {"F(2x2, 3x3)", refuse<ConvAlgorithm::kWinograd2>, plan_fastest},
    {"F(4x4, 3x3)", refuse<ConvAlgorithm::kWinograd4>, plan_fastest},
};

// Constant weights are transformed once for each algorithm that the node's shapes may call for; the algorithm
// is chosen in each plan, from the actual N, H and W.
class WinogradConvGpu final : public GpuKernelOf<WinogradConvOp> {
 public:
  using GpuKernelOf::GpuKernelOf;

  void prepare(const Node& node) override {
    const auto w = node.constant(1);
    if (!w) return;
    const ConvProblem p = op_.static_problem(node.inputs[0].shape, w->shape);
    for (const ConvAlgorithm algorithm : algorithms(p)) {
      const gpu::Plan prepare = gpu::winograd_conv_prepare_plan(p, half_, algorithm);
      Weights& weights = weights_[algorithm];
      weights.device = &device_;
      weights.memory = device_.allocate(static_cast<size_t>(prepare.weights));
      const void* inputs[] = {nullptr, w->data};
      device_.run(prepare, {inputs, nullptr, nullptr, weights.memory}, nullptr);
    }
    device_.synchronize(nullptr);
  }
  static Implementations implementations() { return described(kAlgorithms); }

 private:
  void plan(Call& call, Program& program) const override {
    const auto p = problem(call);
    if (!p) return;
    Work work{{*p, half_, call, program, device_}, weights_, fastest(*p)};
    program.implementation = choice_.plan(kAlgorithms, work, call);
  }

  // Of those that there are weights for.
  gpu::ConvChoice fastest(const ConvProblem& p) const {
    if (weights_.empty()) return gpu::choose_conv(p, half_, device_.facts());
    std::optional<gpu::ConvChoice> best;
    for (const auto& [algorithm, weights] : weights_) {
      const gpu::ConvChoice choice = gpu::choose_conv(p, half_, device_.facts(), algorithm);
      if (!best || choice.seconds < best->seconds) best = choice;
    }
    return *best;
  }

  // Those that the known part of the shape leaves open: a dim of 0 is unknown.
  std::set<ConvAlgorithm> algorithms(ConvProblem p) const {
    if (p.H == 0 || p.W == 0) {
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
    // For batches that are too large for it.
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
