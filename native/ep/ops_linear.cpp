// MatMul and Gemm: the vendor's library where it is installed, else a kernel of our own.
#include <algorithm>

#include "abi/error.h"
#include "ep/operators.h"
#include "gpu/elementwise_plan.h"
#include "gpu/gemm_plan.h"
#include "gpu/libraries.h"

namespace graphopt::ep {

using gpu::GemmProblem;

void multiply(Execution& e, const GemmProblem& p, const Tensor& a, const Tensor& b, void* y) {
  const bool half = a.type == ElementType::kHalf;
  if (p.M * p.N * p.batch.elements() == 0) return;
  if (gpu::Blas* blas = p.K > 0 ? gpu::blas(e.device()) : nullptr) {
    blas->gemm(p, half, a.data, b.data, y, e.stream());
  } else {
    e.run(gpu::gemm_plan(p, half, aligned({a.data, b.data, y}), e.device().facts()), {a.data, b.data}, {y});
  }
}

void broadcast(Execution& e, const void* x, const Shape& from, bool half, const Shape& to, void* y) {
  gpu::ElementwiseProblem p;
  p.a = from;
  p.y = to;
  e.run(gpu::elementwise_plan(p, half, aligned({x, y})), {x}, {y});
}

namespace {

using abi::GraphNode;

class MatMul final : public OpKernel {
 public:
  void run(Execution& e) const override {
    const Tensor &a = e.input(0), &b = e.input(1);
    // A vector is a matrix with one row, or one column, that the result lacks.
    const bool row = a.shape.rank() == 1, column = b.shape.rank() == 1;
    if (a.shape.rank() == 0 || b.shape.rank() == 0) throw Error("A and B must have rank 1 or more");
    const Shape as = row ? Shape{1, a.shape[0]} : a.shape, bs = column ? Shape{b.shape[0], 1} : b.shape;
    GemmProblem p;
    p.M = as[as.rank() - 2];
    p.K = as[as.rank() - 1];
    p.N = bs[bs.rank() - 1];
    if (bs[bs.rank() - 2] != p.K) {
      throw Error("A " + a.shape.text() + " and B " + b.shape.text() + " do not fit");
    }
    const Shape a_batch = leading(as), b_batch = leading(bs);
    p.batch = gpu::broadcast_shape(a_batch, b_batch);
    Shape y(p.batch.rank() + (row ? 0 : 1) + (column ? 0 : 1));
    std::copy(p.batch.data(), p.batch.data() + p.batch.rank(), y.data());
    size_t d = p.batch.rank();
    if (!row) y[d++] = p.M;
    if (!column) y[d++] = p.N;
    p.a_batch = scaled(gpu::broadcast(a_batch, p.batch), p.M * p.K);
    p.b_batch = scaled(gpu::broadcast(b_batch, p.batch), p.K * p.N);
    if (b_batch.elements() == 1 &&
        a_batch.elements() == p.batch.elements()) {  // one B: all rows in one product
      p.M *= a_batch.elements();
      p.batch = Shape();
      p.a_batch.clear();
      p.b_batch.clear();
    }
    multiply(e, p, a, b, e.output(0, y));
  }

 private:
  static Shape leading(const Shape& s) {
    Shape result(s.rank() - 2);
    std::copy(s.data(), s.data() + result.rank(), result.data());
    return result;
  }
  static std::vector<int64_t> scaled(std::vector<int64_t> strides, int64_t factor) {
    for (int64_t& s : strides) s *= factor;
    return strides;
  }
};

class Gemm final : public OpKernel {
 public:
  explicit Gemm(const Attributes& a)
      : alpha_(a.find_float("alpha").value_or(1.0f)),
        beta_(a.find_float("beta").value_or(1.0f)),
        transpose_a_(a.find_int("transA").value_or(0) != 0),
        transpose_b_(a.find_int("transB").value_or(0) != 0) {}

  void run(Execution& e) const override {
    const Tensor &a = e.input(0), &b = e.input(1);
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
    void* y = e.output(0, shape);
    if (e.has_input(2) && shape.elements() > 0) {
      p.beta = beta_;
      broadcast(e, e.input(2).data, e.input(2).shape, a.type == ElementType::kHalf, shape, y);
    }
    multiply(e, p, a, b, y);
  }

 private:
  float alpha_, beta_;
  bool transpose_a_, transpose_b_;
};

}  // namespace

void add_linear(std::vector<Operator>& table) {
  const auto floats = [](const GraphNode& node) { return refuse_mixed_floats(node); };
  add(table, "MatMul", 1, 13, [](const Attributes&) { return std::make_unique<MatMul>(); }).refused(floats);
  add(table, "Gemm", 7, 13, [](const Attributes& a) { return std::make_unique<Gemm>(a); }).refused(floats);
}

}  // namespace graphopt::ep
