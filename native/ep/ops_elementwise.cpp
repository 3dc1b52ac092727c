// Relu, Add, Where, ...: gpu/elementwise_plan.h.
#include <limits>

#include "ep/operators.h"
#include "gpu/elementwise_plan.h"

namespace graphopt::ep {
namespace {

using abi::GraphNode;
using gpu::ElementwiseProblem;

class Unary final : public OpKernel {
 public:
  Unary(hip::ElementwiseOp op, float p, float q, bool host_limits)
      : op_(op), p_(p), q_(q), host_limits_(host_limits) {}

  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
    ElementwiseProblem problem;
    problem.op = op_;
    problem.p = host_limits_ ? e.number(1, p_) : p_;
    problem.q = host_limits_ ? e.number(2, q_) : q_;
    problem.a = problem.y = x.shape;
    void* y = e.output(0, x.shape);
    e.run(gpu::elementwise_plan(problem, x.type == ElementType::kHalf, aligned({x.data, y})), {x.data}, {y});
  }

 private:
  hip::ElementwiseOp op_;
  float p_, q_;
  bool host_limits_;  // inputs 1 and 2 replace p and q
};

// Two inputs, or for Max and Min any number.
class Binary final : public OpKernel {
 public:
  explicit Binary(hip::ElementwiseOp op) : op_(op) {}

  void run(Execution& e) const override {
    const size_t n = e.input_count();
    Shape shape = e.input(0).shape;
    for (size_t i = 1; i < n; ++i) shape = gpu::broadcast_shape(shape, e.input(i).shape);
    void* y = e.output(0, shape);
    const bool half = e.input(0).type == ElementType::kHalf;
    Tensor a = e.input(0);
    for (size_t i = 1; i < n || i == 1; ++i) {
      ElementwiseProblem problem;
      problem.a = a.shape;
      problem.y = shape;
      const Tensor b = n > 1 ? e.input(i) : a;
      problem.op = op_;
      problem.b = b.shape;
      problem.binary = true;
      e.run(gpu::elementwise_plan(problem, half, aligned({a.data, b.data, y})), {a.data, b.data}, {y});
      a.data = y;
      a.shape = shape;
    }
  }

 private:
  hip::ElementwiseOp op_;
};

class Where final : public OpKernel {
 public:
  void run(Execution& e) const override {
    const Tensor &mask = e.input(0), &a = e.input(1), &b = e.input(2);
    ElementwiseProblem problem;
    problem.op = hip::kWhereOp;
    problem.masked = problem.binary = true;
    problem.mask = mask.shape;
    problem.a = a.shape;
    problem.b = b.shape;
    problem.y = gpu::broadcast_shape(gpu::broadcast_shape(mask.shape, a.shape), b.shape);
    void* y = e.output(0, problem.y, a.type);
    e.run(gpu::elementwise_plan(problem, a.type == ElementType::kHalf, aligned({a.data, b.data, y})),
          {a.data, b.data, mask.data}, {y});
  }
};

float value_or(const Attributes& attributes, const char* name, float absent) {
  return attributes.find_float(name).value_or(absent);
}

}  // namespace

void add_elementwise(std::vector<Operator>& table) {
  const auto floats = [](const GraphNode& node) { return refuse_mixed_floats(node); };
  const auto unary = [&](const char* name, int first, int last, hip::ElementwiseOp code) {
    add(table, name, first, last,
        [code](const Attributes&) { return std::make_unique<Unary>(code, 0.0f, 0.0f, false); })
        .refused(floats)
        .reuses(Reuse::kInplace);
  };
  // With float attributes and what they are when absent.
  const auto parametric = [&](const char* name, int first, int last, hip::ElementwiseOp code, float p,
                              float q) {
    add(table, name, first, last,
        [code, p, q](const Attributes& a) {
          return std::make_unique<Unary>(code, value_or(a, "alpha", p), value_or(a, "beta", q), false);
        })
        .refused(floats)
        .reuses(Reuse::kInplace);
  };
  // Reuse::kInplace would let the runtime write over an input that is broadcast.
  const auto binary = [&](const char* name, int first, int last, hip::ElementwiseOp code) {
    add(table, name, first, last, [code](const Attributes&) {
      return std::make_unique<Binary>(code);
    }).refused(floats);
  };
  unary("Relu", 6, 14, hip::kReluOp);
  unary("Sigmoid", 6, 13, hip::kSigmoidOp);
  unary("Tanh", 6, 13, hip::kTanhOp);
  unary("Erf", 9, 13, hip::kErfOp);
  unary("HardSwish", 14, 22, hip::kHardSwishOp);
  unary("Softplus", 1, 22, hip::kSoftplusOp);
  unary("Exp", 6, 13, hip::kExpOp);
  unary("Log", 6, 13, hip::kLogOp);
  unary("Sqrt", 6, 13, hip::kSqrtOp);
  unary("Reciprocal", 6, 13, hip::kReciprocalOp);
  unary("Neg", 6, 13, hip::kNegOp);
  unary("Abs", 6, 13, hip::kAbsOp);
  parametric("LeakyRelu", 6, 16, hip::kLeakyReluOp, 0.01f, 0.0f);
  parametric("HardSigmoid", 6, 22, hip::kHardSigmoidOp, 0.2f, 0.5f);
  parametric("Elu", 6, 22, hip::kEluOp, 1.0f, 0.0f);
  add(table, "Gelu", 20, 20,
      [](const Attributes& a) {
        const bool tanh = a.find_string("approximate").value_or("none") == "tanh";
        return std::make_unique<Unary>(tanh ? hip::kGeluTanhOp : hip::kGeluOp, 0.0f, 0.0f, false);
      })
      .refused(floats)
      .reuses(Reuse::kInplace);
  add(table, "Clip", 11, 13,
      [](const Attributes&) {
        const float most = std::numeric_limits<float>::infinity();
        return std::make_unique<Unary>(hip::kClipOp, -most, most, true);
      })
      .refused(floats)
      .reuses(Reuse::kInplace)
      .reads_on_host({1, 2});
  binary("Add", 7, 14, hip::kAddOp);
  binary("Sub", 7, 14, hip::kSubOp);
  binary("Mul", 7, 14, hip::kMulOp);
  binary("Div", 7, 14, hip::kDivOp);
  binary("Pow", 7, 15, hip::kPowOp);
  binary("PRelu", 7, 16, hip::kPReluOp);
  binary("Max", 8, 13, hip::kMaxOp);
  binary("Min", 8, 13, hip::kMinOp);
  add(table, "Where", 9, 16, [](const Attributes&) {
    return std::make_unique<Where>();
  }).refused([](const GraphNode& node) { return refuse_mixed_floats(node, {0}); });
}

}  // namespace graphopt::ep
