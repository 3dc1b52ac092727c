#include "operators/linear/op.h"

#include "device/libraries/libraries.h"
#include "operators/linear/cpu.h"
#include "operators/room.h"

namespace graphopt {

std::vector<LinearOp> LinearOp::all() {
  using A = ActivationKind;
  std::vector<LinearOp> ops;
  for (const A kind : {A::kNone, A::kRelu, A::kSilu, A::kGelu, A::kGeluTanh, A::kMish}) {
    LinearOp op;
    op.act_.kind = kind;
    ops.push_back(op);
  }
  LinearOp sum;
  sum.add_ = true;
  ops.push_back(sum);
  return ops;
}

std::vector<LinearBf16Op> LinearBf16Op::all() {
  std::vector<LinearBf16Op> ops(1);
  ops[0].add_ = true;
  for (const ActivationKind kind : all_activations()) ops.emplace_back().act_.kind = kind;
  for (LinearBf16Op& op : ops) op.bfloat16_ = true;
  return ops;
}

std::string LinearOp::name() const {
  return std::string("Linear") + (add_ ? "Add" : "") + activation_suffix(act_.kind) +
         (bfloat16_ ? "Bf16" : "");
}

std::vector<Operand> LinearOp::inputs() const { return std::vector<Operand>(add_ ? 4 : 3, Operand::kTensor); }

void LinearOp::read(const Node& node) { act_ = read_activation(act_.kind, node); }

LinearProblem LinearOp::static_problem(const std::optional<Shape>&, const Shape& w) const {
  if (w.rank() != 2) throw Error("W must be a matrix, got " + w.text());
  LinearProblem p;
  p.K = w[0];
  p.N = w[1];
  p.has_residual = add_;
  p.bfloat16 = bfloat16_;
  p.act = act_;
  return p;
}

LinearProblem LinearOp::problem(const Shapes& inputs) const {
  const Shape &x = inputs[0], &w = inputs[1];
  if (x.rank() < 1) throw Error("X must have rank 1 or more");
  LinearProblem p = static_problem(x, w);
  if (x[x.rank() - 1] != p.K) throw Error("X " + x.text() + " and W " + w.text() + " do not fit");
  const Shape bias = {p.N};
  if (inputs[2] != bias) throw Error("b must be " + bias.text() + ", got " + inputs[2].text());
  const Shape y = output(inputs);
  if (add_ && inputs[3] != y) throw Error("R must be like Y " + y.text() + ", got " + inputs[3].text());
  p.rows = 1;
  for (size_t i = 0; i + 1 < x.rank(); ++i) p.rows *= x[i];
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

namespace {

template <class T>
class LinearCpu final : public PackedCpuKernel<LinearBf16Op> {
 public:
  using PackedCpuKernel::PackedCpuKernel;

 private:
  std::string layout(const LinearProblem& p) const override {
    return p.bfloat16 ? "bfloat16 panels" : "panels";
  }
  size_t packed_bytes(const LinearProblem& p) const override { return cpu::linear_weights<T>(p); }
  void pack(const LinearProblem& p, const Tensor& w, void* packed) const override {
    cpu::linear_prepare(p, w.as<const T>(), packed);
  }
  size_t scratch(const LinearProblem& p, size_t) const override { return cpu::linear_workspace<T>(p); }
  void compute(const LinearProblem& p, const Call& call, const void* packed, void* scratch) const override {
    cpu::linear(p, data<T>(call, 0), packed, data<T>(call, 2), p.has_residual ? data<T>(call, 3) : nullptr,
                call.outputs[0].as<T>(), *call.parallel, scratch);
  }
};

using Work = GpuWork<LinearProblem>;

const char* refuse_epilogue(Work& work) {
  if (work.p.K == 0) return "there is nothing to add up";
  if (work.call.alignment < gpu::BlasLt::kAlignment) return "memory is not aligned to 256 bytes";
  const auto opened = gpu::blas_lt(work.device, work.call.libraries);
  if (opened.library == nullptr) return opened.why;
  const auto bytes = opened.library->linear_workspace(work.p, work.half);
  if (!bytes) return "it has no such product";
  work.library_bytes = *bytes;
  return nullptr;
}

void plan_epilogue(Work& work) {
  const Ref workspace =
      work.library_bytes > 0 ? work.program.reserve(static_cast<int64_t>(work.library_bytes)) : Ref();
  work.program.call(
      [library = gpu::blas_lt(work.device, work.call.libraries).library, p = work.p,
       half = work.half](const Program::Addresses& at) {
        return library->linear(p, half, at.inputs[0], at.inputs[1], at.inputs[2], at.inputs[3], at.outputs[0],
                               at.outputs[1], at.stream);
      },
      {Ref::input(0), Ref::input(1), Ref::input(2), work.p.has_residual ? Ref::input(3) : Ref()},
      {Ref::output(0), workspace});
}

const char* refuse_library(Work& work) {
  if (work.p.K == 0) return "there is nothing to add up";
  return gpu::blas(work.device, work.call.libraries).why_not();
}

void plan_library(Work& work) {
  work.program.call(
      [library = gpu::blas(work.device, work.call.libraries).library, product = gpu::linear_product(work.p),
       half = work.half](const Program::Addresses& at) {
        return library->gemm(product, half, at.inputs[0], at.inputs[1], at.outputs[0], at.stream);
      },
      {Ref::input(0), Ref::input(1)}, {Ref::output(0)});
  work.program.launch(gpu::linear_rest_plan(work.p, work.half, work.call.aligned()), work.call);
}

void load_blas_lt(gpu::Device& device, const gpu::LibraryChoices* libraries) {
  gpu::blas_lt(device, libraries);
}
void load_blas(gpu::Device& device, const gpu::LibraryChoices* libraries) { gpu::blas(device, libraries); }

void plan_own(Work& work) {
  work.program.launch(gpu::linear_plan(work.p, work.half, work.call.aligned(), work.device.facts()),
                      work.call);
}

constexpr Implementation<Work> kLinear[] = {
    {"cuBLASLt or hipBLASLt", refuse_epilogue, plan_epilogue, load_blas_lt},
    {"cuBLAS or rocBLAS, and one more launch", refuse_library, plan_library, load_blas},
    {"a product of our own", take_all<Work>, plan_own},
};

}  // namespace

void add_linear(Kernels& kernels) {
  kernels.add_cpu<LinearBf16Op, LinearCpu>(Reuse::kNone, {ElementType::kFloat});
  kernels.add_gpu<LinearOp, GpuKernel<LinearOp, kLinear>>(Where::kProvider);
}

}  // namespace graphopt
