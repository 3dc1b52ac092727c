#include "operators/matmul/linear/op.h"

#include "device/libraries/libraries.h"
#include "operators/kernel_bases.h"
#include "operators/matmul/linear/cpu.h"
#include "operators/matmul/linear/linear_call.h"
#include "operators/matmul/matmul/gemm_call.h"

namespace graphopt {
std::vector<LinearOp> LinearOp::all() {
  std::vector<LinearOp> ops = with_tails<LinearOp>({false}, all_activations());
  ops.emplace_back(Tail{{}, true});
  return ops;
}

std::vector<LinearOp> LinearOp::all_bfloat16() {
  std::vector<LinearOp> ops = with_tails<LinearOp>({false}, all_activations(), true);
  ops.emplace_back(Tail{{}, true}, true);
  return ops;
}

LinearProblem LinearOp::static_problem(const std::optional<Shape>&, const Shape& w) const {
  throw_if(w.rank() != 2, "W must be a matrix, got ", w);
  LinearProblem p;
  p.K = w[0];
  p.N = w[1];
  p.has_residual = tail_.has_residual;
  p.bfloat16 = bfloat16_;
  p.strassen = strassen_;
  p.act = tail_.act;
  return p;
}

LinearProblem LinearOp::problem(const Shapes& inputs) const {
  const Shape &x = inputs[0], &w = inputs[1];
  throw_if(x.rank() < 1, "X must have rank 1 or more");
  LinearProblem p = static_problem(x, w);
  throw_if(x[x.rank() - 1] != p.K, "the last axis of X ", x, " differs from the first axis of W ", w);
  require_shape("b", inputs[2], {p.N});
  require_residual(inputs, "Y", output(inputs));
  p.rows = x.elements(0, x.rank() - 1);
  return p;
}

Shape LinearOp::output(const Shapes& inputs) const {
  Shape y = inputs[0];
  y[y.rank() - 1] = inputs[1][1];
  return y;
}

void LinearOp::infer(const ShapeInference& node) const {
  SymbolicShape y = node.input(0);
  const SymbolicShape w = node.input(1);
  if (y.empty() || w.size() != 2) return;
  y.back() = w[1];
  node.set_output(0, y);
}

const char* refuse_blas_lt(const Call& call, gpu::Device& device, const LinearProblem& p, bool half,
                           size_t& library_bytes) {
  if (p.K == 0) return "the inner dimension is 0";
  if (call.alignment < gpu::BlasLt::kAlignment) return "memory is not aligned to 256 bytes";
  const auto blas_lt = gpu::blas_lt(device, call.libraries).on(call.stream);
  if (blas_lt.handle == nullptr) return blas_lt.why;
  const auto bytes = blas_lt.handle->linear_workspace(p, half);
  if (!bytes) return "the library has no algorithm for this GEMM";
  library_bytes = *bytes;
  return nullptr;
}

void plan_blas_lt(const Call& call, Program& program, const LinearProblem& p, bool half,
                  const LinearRefs& layer, Ref workspace) {
  program.call(
      [handle = gpu::blas_lt(program.device(), call.libraries).on(call.stream).handle, p,
       half](const Program::Addresses& at) {
        return handle->linear(p, half, at.inputs[0], at.inputs[1], at.inputs[2], at.inputs[3], at.outputs[0],
                              at.outputs[1]);
      },
      {layer.x, layer.w, layer.b, layer.r}, {layer.y, workspace});
}

namespace {

template <class T>
class LinearCpu final : public PackedCpuKernel<LinearOp, cpu::linear_kernels<T>> {
 public:
  using PackedCpuKernel<LinearOp, cpu::linear_kernels<T>>::PackedCpuKernel;

 private:
  cpu::OnlyAlgorithm choose_algorithm(const LinearProblem&) const override { return {}; }
  std::string layout(const LinearProblem& p, cpu::OnlyAlgorithm) const override {
    return p.bfloat16 ? "bfloat16 panels" : "panels and norms";
  }
};

// The work of one layer, or of several layers with the same X.
struct LinearWork : GpuWork<LinearProblem> {
  std::vector<LinearRefs> layers;
};

const char* refuse_epilogue_of(LinearWork& work, const LinearProblem& p) {
  return refuse_blas_lt(work.call, work.device(), p, work.half, work.library_bytes);
}

void plan_epilogue_of(LinearWork& work, const LinearProblem& p, const LinearRefs& layer) {
  plan_blas_lt(work.call, work.program, p, work.half, layer, work.library_workspace());
}

LinearProblem single_layer(LinearProblem p) {
  p.layers = 1;
  p.w_step = p.b_step = p.y_step = 0;
  return p;
}

const char* refuse_all_at_once(LinearWork& work) {
  if (work.p.w_step == 0) return "the weights are not contiguous";
  return refuse_epilogue_of(work, work.p);
}
void plan_all_at_once(LinearWork& work) { plan_epilogue_of(work, work.p, work.layers[0]); }

const char* refuse_epilogue(LinearWork& work) { return refuse_epilogue_of(work, single_layer(work.p)); }
void plan_epilogue(LinearWork& work) {
  for (const LinearRefs& layer : work.layers) plan_epilogue_of(work, single_layer(work.p), layer);
}

const char* refuse_library(LinearWork& work) {
  if (work.p.K == 0) return "the inner dimension is 0";
  return gpu::blas(work.device(), work.call.libraries).on(work.call.stream).why_not();
}

void plan_library(LinearWork& work) {
  for (const LinearRefs& layer : work.layers) {
    work.program.call(
        [handle = gpu::blas(work.device(), work.call.libraries).on(work.call.stream).handle,
         gemm = gpu::linear_gemm(work.p), half = work.half](const Program::Addresses& at) {
          return handle->gemm(gemm, half, at.inputs[0], at.inputs[1], at.outputs[0]);
        },
        {layer.x, layer.w}, {layer.y});
    work.program.launch(gpu::linear_epilogue_plan(work.p, work.half, work.call.aligned()),
                        {layer.x, layer.w, layer.b, layer.r}, {layer.y});
  }
}

void load_blas_lt(gpu::Device& device, const gpu::LibraryChoices* libraries) {
  gpu::blas_lt(device, libraries);
}

void plan_built_in_for(LinearWork& work, const LinearProblem& p, const LinearRefs& layer) {
  work.program.launch(gpu::linear_plan(p, work.half, work.call.aligned(), work.facts()),
                      {layer.x, layer.w, layer.b, layer.r}, {layer.y});
}
void plan_built_in(LinearWork& work) {
  for (const LinearRefs& layer : work.layers) plan_built_in_for(work, single_layer(work.p), layer);
}

// One GEMM for all layers can have tiles for all compute units when the GEMM of a single layer has too few.
const char* refuse_built_in_at_once(LinearWork& work) {
  if (work.p.w_step == 0) return "the weights are not contiguous";
  if (work.p.layers * work.p.w_step >= int64_t{1} << 31) return "the weights are too large for one GEMM";
  return work.p.y_step == work.p.rows * work.p.N ? nullptr : "the outputs are not contiguous";
}
void plan_built_in_at_once(LinearWork& work) { plan_built_in_for(work, work.p, work.layers[0]); }

constexpr Implementation<LinearWork> kLinear[] = {
    {"cuBLASLt or hipBLASLt", refuse_epilogue, plan_epilogue, load_blas_lt},
    {"cuBLAS or rocBLAS, and one more launch", refuse_library, plan_library, load_blas},
    {"built-in GEMM", accept_all<LinearWork>, plan_built_in},
};

constexpr Implementation<LinearWork> kLayers[] = {
    {"all layers in one cuBLASLt GEMM", refuse_all_at_once, plan_all_at_once},
    {"each layer by cuBLASLt or hipBLASLt", refuse_epilogue, plan_epilogue},
    {"each layer by cuBLAS or rocBLAS, and one more launch", refuse_library, plan_library},
    {"all layers in one built-in GEMM", refuse_built_in_at_once, plan_built_in_at_once},
    {"each layer by built-in GEMM", accept_all<LinearWork>, plan_built_in},
};

class LinearGpu final : public GpuKernelOf<LinearOp> {
 public:
  using GpuKernelOf::GpuKernelOf;
  static Implementations implementations() { return summarize(kLinear); }

 private:
  void plan(Call& call, Program& program) const override {
    const auto p = problem(call);
    if (!p) return;
    LinearWork work{{*p, half_, call, program}, {}};
    work.layers.push_back(
        {Ref::input(0), Ref::input(1), Ref::input(2), input_or_none(call, 3), Ref::output(0)});
    program.implementation = choice_.plan(kLinear, work, call);
  }
};

// Layers with the same X. Inputs: X, then the W of all layers, then their b. Outputs: in the order of the layers; each
// begins at the first multiple of kSiblingAlignment after the end of the previous one.
class LinearLayersGpu final : public GpuKernelOf<LinearOp> {
 public:
  LinearLayersGpu(const LinearOp& op, const Node& node, gpu::Device& device, size_t layers)
      : GpuKernelOf(op, node, device), layers_(layers) {}

 private:
  void plan(Call& call, Program& program) const override {
    Tensors first;
    first.resize(3);
    first[0] = call.input(0);
    first[1] = call.input(1);
    first[2] = call.input(1 + layers_);
    const Shapes shapes(first);
    LinearProblem p = op_.problem(shapes);
    const Shape y = op_.output(shapes);
    for (size_t i = 0; i < layers_; ++i) set_output(call, i, y);
    if (y.elements() == 0) return;
    p.layers = static_cast<int64_t>(layers_);
    p.w_step = step(call, 1);
    p.b_step = step(call, 1 + layers_);
    if (p.b_step == 0) p.w_step = 0;
    const int64_t element = half_ ? 2 : 4;
    p.y_step = gpu::round_up(y.elements() * element, kSiblingAlignment) / element;
    LinearWork work{{p, half_, call, program}, {}};
    for (size_t i = 0; i < layers_; ++i) {
      work.layers.push_back(
          {Ref::input(0), Ref::input(1 + i), Ref::input(1 + layers_ + i), Ref(), Ref::output(i)});
    }
    program.implementation = choice_.plan(kLayers, work, call);
  }

  // Returns the stride, in elements, of the layers' inputs from input `first` on. Returns 0 unless each input begins at
  // the first multiple of kSiblingAlignment after the previous one. Another constant stride would be a coincidence of
  // the device's allocator. It could also be too large for cuBLASLt's kernels, which compute the offset of a bias in 32
  // bits and read a wrong address if two biases are more than 2 GiB apart.
  int64_t step(const Call& call, size_t first) const {
    const Tensor& one = call.input(first);
    const int64_t element = static_cast<int64_t>(bytes_of(one.type));
    const int64_t packed = gpu::round_up(one.shape.elements() * element, kSiblingAlignment);
    for (size_t i = 1; i < layers_; ++i) {
      const auto at = [&](size_t k) { return reinterpret_cast<intptr_t>(call.input(first + k).data); };
      if (at(i) - at(i - 1) != packed) return 0;
    }
    return packed / element;
  }

  size_t layers_;
};

}  // namespace

void disable_strassen(Table& table) {
  Kernels kernels(nullptr);
  std::vector<LinearOp> ops = LinearOp::all();
  for (LinearOp& op : ops) op.use_strassen(false);
  kernels.add_cpu<LinearOp, LinearCpu>(Reuse::kNone, {ElementType::kFloat, ElementType::kHalf}, ops);
  for (Registration& without : std::move(kernels).take({Where::kCpu})) {
    for (Registration& registration : table) {
      if (registration.name == without.name && registration.where == Where::kCpu) {
        registration.create = without.create;
      }
    }
  }
}

void add_linear(Kernels& kernels) {
  kernels.add_cpu<LinearOp, LinearCpu>();
  kernels.add_cpu<LinearOp, LinearCpu>(Reuse::kNone, {ElementType::kFloat}, LinearOp::all_bfloat16());
  kernels.add_gpu<LinearOp, LinearGpu>(Where::kGpu);
  kernels.takes_siblings<LinearOp, LinearLayersGpu>();
}

}  // namespace graphopt
