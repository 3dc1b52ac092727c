// MatMul and Gemm, computed by the vendor's library if it is installed, otherwise by the built-in kernel.
#include "operators/elementwise/elementwise/op.h"

#include "device/libraries/libraries.h"
#include "operators/kernel_bases.h"
#include "operators/matmul/integer_matmul/op.h"
#include "operators/matmul/matmul/gemm_call.h"

namespace graphopt {
using gpu::GemmProblem;

const char* refuse_gemm_by_library(GemmCall& gemm) {
  if (gemm.p.K == 0) return "the inner dimension is 0";
  return gpu::blas(gemm.device(), gemm.call.libraries).on(gemm.call.stream).why_not();
}

void load_blas(gpu::Device& device, const gpu::LibraryChoices* libraries) { gpu::blas(device, libraries); }

void plan_gemm_by_library(GemmCall& gemm) {
  gemm.program.call(
      [handle = gpu::blas(gemm.device(), gemm.call.libraries).on(gemm.call.stream).handle,
       problem = std::move(gemm.p), half = gemm.half](const Program::Addresses& at) {
        return handle->gemm(problem, half, at.inputs[0], at.inputs[1], at.outputs[0]);
      },
      {gemm.a, gemm.b}, {gemm.y});
}

void plan_built_in_gemm(GemmCall& gemm) {
  gemm.program.launch(gpu::gemm_plan(gemm.p, gemm.half, gemm.call.aligned(), gemm.facts()), {gemm.a, gemm.b},
                      {gemm.y});
}

namespace {

constexpr Implementation<GemmCall> kImplementations[] = {
    {"cuBLAS or rocBLAS", refuse_gemm_by_library, plan_gemm_by_library, load_blas},
    {"built-in GEMM", accept_all<GemmCall>, plan_built_in_gemm},
};

}  // namespace

Implementations GemmChoice::implementations() { return summarize(kImplementations); }

void GemmChoice::plan(GemmCall gemm) const {
  gemm.program.implementation = choice_->plan(kImplementations, gemm, gemm.call);
}

namespace {

struct GemmAttributes {
  float alpha;
  bool transpose_a, transpose_b;

  explicit GemmAttributes(const Node& node)
      : alpha(node.get_float("alpha", 1.0f)),
        transpose_a(node.get_bool("transA")),
        transpose_b(node.get_bool("transB")) {}
};

void multiply_integers(const GemmProblem& p, const Call& call, Program& program) {
  gpu::IntegerProblem integers;
  integers.left = integers.right = call.input(0).type;
  integers.has_bias = call.has_input(2);
  if (integers.has_bias) {
    const auto strides = gpu::broadcast(call.input(2).shape, {p.M, p.N});
    integers.bias_m = strides[0];
    integers.bias_n = strides[1];
  }
  program.launch(gpu::integer_matmul_plan(p, integers),
                 {Ref::input(0), Ref::input(1), Ref(), Ref(), input_or_none(call, 2)}, {Ref::output(0)});
}

void multiply(const GemmChoice& choice, GemmProblem p, const Call& call, Program& program) {
  if (p.M * p.N * p.batch.elements() == 0) return;
  if (is_integer(call.input(0).type)) return multiply_integers(p, call, program);
  choice.plan(
      {{std::move(p), is_half(call.input(0)), call, program}, Ref::input(0), Ref::input(1), Ref::output(0)});
}

// MatMul and FusedMatMul, which has alpha, transA and transB.
Planner plan_matmul(const Node& node) {
  return [choice = GemmChoice(node), attributes = GemmAttributes(node)](Call& call, Program& program) {
    auto [p, y] =
        matmul_of(call.input(0).shape, call.input(1).shape, attributes.transpose_a, attributes.transpose_b);
    p.alpha = attributes.alpha;
    set_output(call, 0, y);
    multiply(choice, std::move(p), call, program);
  };
}

std::string refuse_fused_matmul(const Node& node) {
  if (node.get_bool("transBatchA") || node.get_bool("transBatchB")) {
    return "transBatchA or transBatchB moves the batch axes behind the rows";
  }
  return refuse_mixed_floats(node);
}

Planner plan_gemm(const Node& node) {
  return [choice = GemmChoice(node), attributes = GemmAttributes(node), beta = node.get_float("beta", 1.0f)](
             Call& call, Program& program) {
    const Tensor &a = call.input(0), &b = call.input(1);
    throw_if(a.shape.rank() != 2 || b.shape.rank() != 2, "A and B must be matrices");
    GemmProblem p;
    p.transpose_a = attributes.transpose_a;
    p.transpose_b = attributes.transpose_b;
    p.M = a.shape[attributes.transpose_a ? 1 : 0];
    p.K = a.shape[attributes.transpose_a ? 0 : 1];
    p.N = b.shape[attributes.transpose_b ? 0 : 1];
    throw_if(b.shape[attributes.transpose_b ? 1 : 0] != p.K, "the inner dimensions of A ", a.shape, " and B ",
             b.shape, " differ");
    p.alpha = attributes.alpha;
    const Shape shape = {p.M, p.N};
    const Ref y = set_output(call, 0, shape);
    if (call.has_input(2) && shape.elements() > 0 && !is_integer(a.type)) {
      p.beta = beta;
      program.launch(gpu::broadcast_plan(call.input(2).shape, shape, is_half(a), call.aligned()),
                     {Ref::input(2)}, {y});
    }
    multiply(choice, std::move(p), call, program);
  };
}

}  // namespace

void add_matmul(Kernels& kernels) {
  const auto refuse_types = [](const Node& node) {
    const ElementType type = node.type();
    const bool integers = is_integer(type) && bytes_of(type) >= 4 && node.inputs[1].type == type &&
                          (!node.has_input(2) || node.inputs[2].type == type);
    return integers ? std::string() : refuse_mixed_floats(node);
  };
  const auto refuse_gemm = [refuse_types](const Node& node) {
    const auto is_one = [&](const char* factor) { return node.get_float(factor, 1.0f) == 1.0f; };
    if (is_integer(node.type()) && !(is_one("alpha") && is_one("beta")))
      return std::string("alpha or beta is not 1, and the type is an integer");
    return refuse_types(node);
  };
  kernels.add_onnx("MatMul", 1, 13, plan_matmul)
      .refused(refuse_types)
      .chooses(GemmChoice::implementations())
      .accepts_all_numbers();
  for (const char* name : {"FusedMatMul", "TransposeMatMul"}) {
    kernels.add_microsoft(name, plan_matmul)
        .refused(refuse_fused_matmul)
        .chooses(GemmChoice::implementations());
  }
  kernels.add_onnx("Gemm", 7, 13, plan_gemm)
      .refused(refuse_gemm)
      .chooses(GemmChoice::implementations())
      .accepts_all_numbers();
}

}  // namespace graphopt
