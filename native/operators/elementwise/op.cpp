// Relu, Add, Where, ...
#include "operators/elementwise/op.h"

#include <limits>

#include "operators/room.h"

namespace graphopt {
namespace {

using gpu::ElementwiseProblem;

void plan_unary(Call& call, Program& program, hip::ElementwiseOp op, float p, float q) {
  const Tensor& x = call.input(0);
  ElementwiseProblem problem;
  problem.op = op;
  problem.p = p;
  problem.q = q;
  problem.a = problem.y = x.shape;
  const Ref y = set_output(call, 0, x.shape);
  program.launch(gpu::elementwise_plan(problem, is_half(x), call.aligned()), {Ref::input(0)}, {y});
}

// p and q: the attributes alpha and beta where the operator has them, and what they are when absent.
class Unary final : public gpu::DeviceKernel {
 public:
  Unary(const Node& node, gpu::Device& device, hip::ElementwiseOp op, float p, float q)
      : DeviceKernel(device),
        op_(op),
        p_(node.find_float("alpha").value_or(p)),
        q_(node.find_float("beta").value_or(q)) {}

 private:
  void plan(Call& call, Program& program) const override { plan_unary(call, program, op_, p_, q_); }

  hip::ElementwiseOp op_;
  float p_, q_;
};

class Gelu final : public gpu::DeviceKernel {
 public:
  Gelu(const Node& node, gpu::Device& device)
      : DeviceKernel(device), tanh_(node.find_string("approximate").value_or("none") == "tanh") {}

 private:
  void plan(Call& call, Program& program) const override {
    plan_unary(call, program, tanh_ ? hip::kGeluTanhOp : hip::kGeluOp, 0, 0);
  }

  bool tanh_;
};

// Gelu(A + B), or of A alone where B is left out; with one of the activations for Gelu.
class BiasGelu final : public gpu::DeviceKernel {
 public:
  BiasGelu(const Node&, gpu::Device& device, hip::ElementwiseOp op) : DeviceKernel(device), op_(op) {}

 private:
  void plan(Call& call, Program& program) const override {
    if (!call.has_input(1)) return plan_unary(call, program, op_, 0, 0);
    const Tensor &a = call.input(0), &b = call.input(1);
    const Ref y = set_output(call, 0, a.shape);
    program.launch(gpu::add_plan(a.shape, b.shape, is_half(a), call.aligned()),
                   {Ref::input(0), Ref::input(1)}, {y});
    ElementwiseProblem gelu;
    gelu.op = op_;
    gelu.a = gelu.y = a.shape;
    program.launch(gpu::elementwise_plan(gelu, is_half(a), call.aligned()), {y}, {y});
  }

  hip::ElementwiseOp op_;
};

// Limits that are left out are none.
class Clip final : public gpu::DeviceKernel {
 public:
  Clip(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    constexpr float kMost = std::numeric_limits<float>::infinity();
    plan_unary(call, program, hip::kClipOp, call.number(1, -kMost), call.number(2, kMost));
  }
};

// Two inputs, or for Max and Min any number.
class Binary final : public gpu::DeviceKernel {
 public:
  Binary(const Node&, gpu::Device& device, hip::ElementwiseOp op) : DeviceKernel(device), op_(op) {}

 private:
  void plan(Call& call, Program& program) const override {
    const size_t n = call.inputs.size();
    Shape shape = call.input(0).shape;
    for (size_t i = 1; i < n; ++i) shape = gpu::broadcast_shape(shape, call.input(i).shape);
    const Ref y = set_output(call, 0, shape);
    Ref a = Ref::input(0);
    Shape of_a = call.input(0).shape;
    for (size_t i = 1; i < n || i == 1; ++i) {
      ElementwiseProblem problem;
      problem.a = of_a;
      problem.y = shape;
      problem.op = op_;
      problem.b = n > 1 ? call.input(i).shape : of_a;
      problem.binary = true;
      program.launch(gpu::elementwise_plan(problem, is_half(call.input(0)), call.aligned()),
                     {a, n > 1 ? Ref::input(i) : a}, {y});
      a = y;
      of_a = shape;
    }
  }

  hip::ElementwiseOp op_;
};

class Selection final : public gpu::DeviceKernel {
 public:
  Selection(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &mask = call.input(0), &a = call.input(1), &b = call.input(2);
    ElementwiseProblem problem;
    problem.op = hip::kWhereOp;
    problem.masked = problem.binary = true;
    problem.mask = mask.shape;
    problem.a = a.shape;
    problem.b = b.shape;
    problem.y = gpu::broadcast_shape(gpu::broadcast_shape(mask.shape, a.shape), b.shape);
    const Ref y = set_output(call, 0, problem.y, a.type);
    program.launch(gpu::elementwise_plan(problem, is_half(a), call.aligned()),
                   {Ref::input(1), Ref::input(2), Ref::input(0)}, {y});
  }
};

}  // namespace

void add_elementwise(Kernels& kernels) {
  const auto floats = [](const Node& node) { return refuse_mixed_floats(node); };
  const auto alike = [](const Node&) { return Layout::kAny; };
  const auto unary = [&](const char* name, int first, int last, hip::ElementwiseOp code, float p = 0,
                         float q = 0) {
    kernels.add_onnx<Unary>(name, first, last, code, p, q)
        .refused(floats)
        .reuses(Reuse::kInplace)
        .lies(alike);
  };
  // Reuse::kInplace would let the runtime write over an input that is broadcast.
  const auto binary = [&](const char* name, int first, int last, hip::ElementwiseOp code) {
    kernels.add_onnx<Binary>(name, first, last, code).refused(floats).lies(alike);
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
  unary("LeakyRelu", 6, 16, hip::kLeakyReluOp, 0.01f, 0.0f);
  unary("HardSigmoid", 6, 22, hip::kHardSigmoidOp, 0.2f, 0.5f);
  unary("Elu", 6, 22, hip::kEluOp, 1.0f, 0.0f);
  kernels.add_onnx<Gelu>("Gelu", 20, 20).refused(floats).reuses(Reuse::kInplace).lies(alike);
  kernels.add_microsoft<Gelu>("Gelu").refused(floats).reuses(Reuse::kInplace);
  kernels.add_microsoft<BiasGelu>("BiasGelu", hip::kGeluOp).refused(floats);
  kernels.add_microsoft<BiasGelu>("FastGelu", hip::kGeluTanhOp).refused(floats);
  kernels.add_onnx<Clip>("Clip", 11, 13)
      .refused(floats)
      .reuses(Reuse::kInplace)
      .reads_on_host({1, 2})
      .lies(alike);
  binary("Add", 7, 14, hip::kAddOp);
  binary("Sub", 7, 14, hip::kSubOp);
  binary("Mul", 7, 14, hip::kMulOp);
  binary("Div", 7, 14, hip::kDivOp);
  binary("Pow", 7, 15, hip::kPowOp);
  binary("PRelu", 7, 16, hip::kPReluOp);
  binary("Max", 8, 13, hip::kMaxOp);
  binary("Min", 8, 13, hip::kMinOp);
  kernels.add_onnx<Selection>("Where", 9, 16).refused([](const Node& node) {
    return refuse_mixed_floats(node, {0});
  });
}

}  // namespace graphopt
