// MatMul and Gemm: the vendor's library where it is installed, else a kernel of our own.
#include "operators/elementwise/elementwise/op.h"

#include "device/libraries/libraries.h"
#include "operators/kernel_bases.h"
#include "operators/matmul/integer_product/op.h"
#include "operators/matmul/matmul/gemm_call.h"

namespace graphopt {

using gpu::GemmProblem;

const char* refuse_library(GemmCall& product) {
  if (product.problem.K == 0) return "there is nothing to add up";
  return gpu::blas(product.device, product.call.libraries).on(product.call.stream).why_not();
}

void load_blas(gpu::Device& device, const gpu::LibraryChoices* libraries) { gpu::blas(device, libraries); }

void plan_library(GemmCall& product) {
  product.program.call(
      [handle = gpu::blas(product.device, product.call.libraries).on(product.call.stream).handle,
       problem = std::move(product.problem), half = product.half](const Program::Addresses& at) {
        return handle->gemm(problem, half, at.inputs[0], at.inputs[1], at.outputs[0]);
      },
      {product.a, product.b}, {product.y});
}

void plan_own(GemmCall& product) {
  product.program.launch(
      gpu::gemm_plan(product.problem, product.half, product.call.aligned(), product.device.facts()),
      {product.a, product.b}, {product.y});
}

namespace {

constexpr Implementation<GemmCall> kProducts[] = {
    {"cuBLAS or rocBLAS", refuse_library, plan_library, load_blas},
    {"a product of our own", take_all<GemmCall>, plan_own},
};

// The product of inputs 0 and 1, by alpha, transA and transB.
class ProductKernel : public gpu::DeviceKernel {
 public:
  ProductKernel(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        alpha_(node.find_float("alpha").value_or(1.0f)),
        transpose_a_(node.find_int("transA").value_or(0) != 0),
        transpose_b_(node.find_int("transB").value_or(0) != 0),
        choice_(node) {}

 protected:
  void multiply(GemmProblem p, const Call& call, Program& program) const {
    if (p.M * p.N * p.batch.elements() == 0) return;
    if (is_whole(call.input(0).type)) return multiply_whole(p, call, program);
    GemmCall product{std::move(p), is_half(call.input(0)), call,          program,
                     device_,      Ref::input(0),          Ref::input(1), Ref::output(0)};
    program.implementation = choice_.plan(kProducts, product, call);
  }

  float alpha_;
  bool transpose_a_, transpose_b_;

 private:
  // With C, where there is one.
  static void multiply_whole(const GemmProblem& p, const Call& call, Program& program) {
    gpu::IntegerProblem numbers;
    numbers.left = numbers.right = call.input(0).type;
    numbers.has_bias = call.has_input(2);
    if (numbers.has_bias) {
      const auto strides = gpu::broadcast(call.input(2).shape, {p.M, p.N});
      numbers.bias_m = strides[0];
      numbers.bias_n = strides[1];
    }
    program.launch(gpu::integer_product_plan(p, numbers),
                   {Ref::input(0), Ref::input(1), Ref(), Ref(), numbers.has_bias ? Ref::input(2) : Ref()},
                   {Ref::output(0)});
  }

  Choice choice_;
};

// MatMul and FusedMatMul, which has alpha, transA and transB.
class MatMul final : public ProductKernel {
 public:
  using ProductKernel::ProductKernel;

 private:
  void plan(Call& call, Program& program) const override {
    auto [p, y] = matmul_of(call.input(0).shape, call.input(1).shape, transpose_a_, transpose_b_);
    p.alpha = alpha_;
    set_output(call, 0, y);
    multiply(std::move(p), call, program);
  }
};

std::string refuse_fused_matmul(const Node& node) {
  if (node.find_int("transBatchA").value_or(0) != 0 || node.find_int("transBatchB").value_or(0) != 0) {
    return "its batches stand between rows and columns";
  }
  return refuse_mixed_floats(node);
}

class Gemm final : public ProductKernel {
 public:
  Gemm(const Node& node, gpu::Device& device)
      : ProductKernel(node, device), beta_(node.find_float("beta").value_or(1.0f)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &a = call.input(0), &b = call.input(1);
    if (a.shape.rank() != 2 || b.shape.rank() != 2) throw Error("A and B must be matrices");
    GemmProblem p;
    p.transpose_a = transpose_a_;
    p.transpose_b = transpose_b_;
    p.M = a.shape[transpose_a_ ? 1 : 0];
    p.K = a.shape[transpose_a_ ? 0 : 1];
    p.N = b.shape[transpose_b_ ? 0 : 1];
    if (b.shape[transpose_b_ ? 1 : 0] != p.K) {
      throw Error("A " + a.shape.text() + " and B " + b.shape.text() + " do not fit");
    }
    p.alpha = alpha_;
    const Shape shape = {p.M, p.N};
    const Ref y = set_output(call, 0, shape);
    if (call.has_input(2) && shape.elements() > 0 && !is_whole(a.type)) {
      p.beta = beta_;
      program.launch(gpu::broadcast_plan(call.input(2).shape, shape, is_half(a), call.aligned()),
                     {Ref::input(2)}, {y});
    }
    multiply(std::move(p), call, program);
  }

  float beta_;
};

}  // namespace

void add_matmul(Kernels& kernels) {
  const auto numbers = [](const Node& node) {
    const ElementType type = node.type();
    const bool whole = is_whole(type) && bytes_of(type) >= 4 && node.inputs[1].type == type &&
                       (!node.has_input(2) || node.inputs[2].type == type);
    return whole ? std::string() : refuse_mixed_floats(node);
  };
  const auto gemm = [numbers](const Node& node) {
    const auto is_one = [&](const char* factor) { return node.find_float(factor).value_or(1.0f) == 1.0f; };
    if (is_whole(node.type()) && !(is_one("alpha") && is_one("beta")))
      return std::string("whole numbers and a factor");
    return numbers(node);
  };
  kernels.add_onnx<MatMul>("MatMul", 1, 13).refused(numbers).chooses(described(kProducts)).takes_rare_types();
  for (const char* name : {"FusedMatMul", "TransposeMatMul"}) {
    kernels.add_microsoft<MatMul>(name).refused(refuse_fused_matmul).chooses(described(kProducts));
  }
  kernels.add_onnx<Gemm>("Gemm", 7, 13).refused(gemm).chooses(described(kProducts)).takes_rare_types();
}

}  // namespace graphopt
