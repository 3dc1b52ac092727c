#include "operators/linear/op.h"

#include "device/libraries/libraries.h"
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

std::string LinearOp::name() const {
  return std::string("Linear") + (add_ ? "Add" : "") + activation_suffix(act_.kind);
}

std::vector<Operand> LinearOp::inputs() const { return std::vector<Operand>(add_ ? 4 : 3, Operand::kTensor); }

void LinearOp::read(const Node& node) { act_ = read_activation(act_.kind, node); }

LinearProblem LinearOp::problem(const Shapes& inputs) const {
  const Shape &x = inputs[0], &w = inputs[1];
  if (x.rank() < 1) throw Error("X must have rank 1 or more");
  if (w.rank() != 2) throw Error("W must be a matrix, got " + w.text());
  LinearProblem p;
  p.K = x[x.rank() - 1];
  p.N = w[1];
  if (w[0] != p.K) throw Error("X " + x.text() + " and W " + w.text() + " do not fit");
  const Shape bias = {p.N};
  if (inputs[2] != bias) throw Error("b must be " + bias.text() + ", got " + inputs[2].text());
  const Shape y = output(inputs);
  if (add_ && inputs[3] != y) throw Error("R must be like Y " + y.text() + ", got " + inputs[3].text());
  p.rows = 1;
  for (size_t i = 0; i + 1 < x.rank(); ++i) p.rows *= x[i];
  p.has_residual = add_;
  p.act = act_;
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

using Work = GpuWork<LinearProblem>;

const char* refuse_epilogue(Work& work) {
  if (work.p.K == 0) return "there is nothing to add up";
  if (work.call.alignment < gpu::BlasLt::kAlignment) return "memory is not aligned to 256 bytes";
  gpu::BlasLt* library = gpu::blas_lt(work.device);
  if (library == nullptr) return "it is not there";
  const auto bytes = library->linear_workspace(work.p, work.half);
  if (!bytes) return "it has no such product";
  work.library_bytes = *bytes;
  return nullptr;
}

void plan_epilogue(Work& work) {
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

const char* refuse_library(Work& work) {
  if (work.p.K == 0) return "there is nothing to add up";
  return gpu::blas(work.device) == nullptr ? "it is not there" : nullptr;
}

void plan_library(Work& work) {
  work.program.call(
      [library = gpu::blas(work.device), product = gpu::linear_product(work.p),
       half = work.half](const Program::Addresses& at) {
        return library->gemm(product, half, at.inputs[0], at.inputs[1], at.outputs[0], at.stream);
      },
      {Ref::input(0), Ref::input(1)}, {Ref::output(0)});
  work.program.launch(gpu::linear_rest_plan(work.p, work.half, work.call.aligned()), work.call);
}

void plan_own(Work& work) {
  work.program.launch(gpu::linear_plan(work.p, work.half, work.call.aligned(), work.device.facts()),
                      work.call);
}

constexpr Implementation<Work> kLinear[] = {
    {"cuBLASLt or hipBLASLt", refuse_epilogue, plan_epilogue},
    {"cuBLAS or rocBLAS, and one more launch", refuse_library, plan_library},
    {"a product of our own", take_all<Work>, plan_own},
};

}  // namespace

void add_linear(Kernels& kernels) {
  kernels.add_gpu<LinearOp, GpuKernel<LinearOp, kLinear>>(Where::kProvider);
}

}  // namespace graphopt
