// Relu, Add, Where, ...
#include "operators/elementwise/elementwise/op.h"

#include <limits>
#include <utility>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

using gpu::ElementwiseProblem;
using gpu::WholeOp;

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

// op(A + B), or op(A) where B is left out.
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

// A function of one whole number.
class WholeUnary final : public gpu::DeviceKernel {
 public:
  WholeUnary(const Node&, gpu::Device& device, WholeOp op) : DeviceKernel(device), op_(op) {}

  static void plan_as(Call& call, Program& program, WholeOp op, int64_t low = 0, int64_t high = 0) {
    const Tensor& x = call.input(0);
    gpu::WholeProblem problem;
    problem.op = op;
    problem.is_signed = is_signed(x.type);
    problem.bytes = bytes_of(x.type);
    problem.low = low;
    problem.high = high;
    problem.a = problem.y = x.shape;
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::whole_plan(problem, call.aligned()), {Ref::input(0)}, {y});
  }

 private:
  void plan(Call& call, Program& program) const override { plan_as(call, program, op_); }

  WholeOp op_;
};

// Neg and Abs, of numbers of any type.
class AnyUnary final : public gpu::DeviceKernel {
 public:
  AnyUnary(const Node&, gpu::Device& device, hip::ElementwiseOp op, WholeOp whole)
      : DeviceKernel(device), op_(op), whole_(whole) {}

 private:
  void plan(Call& call, Program& program) const override {
    if (is_float(call.input(0).type)) {
      plan_unary(call, program, op_, 0, 0);
    } else {
      WholeUnary::plan_as(call, program, whole_);
    }
  }

  hip::ElementwiseOp op_;
  WholeOp whole_;
};

// Limits that are left out are none.
class Clip final : public gpu::DeviceKernel {
 public:
  Clip(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    if (is_float(call.input(0).type)) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      plan_unary(call, program, hip::kClipOp, call.number(1, -kInfinity), call.number(2, kInfinity));
    } else {
      const bool is_uint64 = call.input(0).type == ElementType::kUint64;
      constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(),
                        kMost = std::numeric_limits<int64_t>::max();
      WholeUnary::plan_as(call, program, WholeOp::kClip, limit(call, 1, is_uint64 ? 0 : kLeast),
                          limit(call, 2, is_uint64 ? -1 : kMost));
    }
  }

  // Of uint64 its bits: those of -1 are the largest.
  static int64_t limit(const Call& call, size_t i, int64_t absent) {
    if (!call.has_input(i)) return absent;
    const std::vector<int64_t> given = call.integers(i);
    if (given.size() != 1) throw Error("a limit is one number");
    return given[0];
  }
};

class Relu final : public gpu::DeviceKernel {
 public:
  Relu(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    if (is_float(call.input(0).type)) {
      plan_unary(call, program, hip::kReluOp, 0, 0);
    } else {
      WholeUnary::plan_as(call, program, WholeOp::kClip, 0, std::numeric_limits<int64_t>::max());
    }
  }
};

// What has a kernel for floats, for whole numbers, or for both.
struct Operation {
  hip::ElementwiseOp of_floats = hip::kCopyOp;
  WholeOp of_whole = WholeOp::kNeg;
};

// Two inputs, or for Max and Min any number.
class Binary final : public gpu::DeviceKernel {
 public:
  Binary(const Node&, gpu::Device& device, Operation op) : DeviceKernel(device), op_(op) {}
  Binary(const Node& node, gpu::Device& device, Operation (*op_of)(const Node&))
      : DeviceKernel(device), op_(op_of(node)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const size_t n = call.inputs.size();
    Shape shape = call.input(0).shape;
    for (size_t i = 1; i < n; ++i) shape = gpu::broadcast_shape(shape, call.input(i).shape);
    const Ref y = set_output(call, 0, shape);
    Ref a = Ref::input(0);
    Shape of_a = call.input(0).shape;
    for (size_t i = 1; i < n || i == 1; ++i) {
      const Shape of_b = n > 1 ? call.input(i).shape : of_a;
      program.launch(step(call, of_a, of_b, shape), {a, n > 1 ? Ref::input(i) : a}, {y});
      a = y;
      of_a = shape;
    }
  }

  gpu::Plan step(const Call& call, const Shape& a, const Shape& b, const Shape& y) const {
    const ElementType type = call.input(0).type;
    if (is_float(type)) {
      ElementwiseProblem problem;
      problem.op = op_.of_floats;
      problem.binary = true;
      problem.a = a;
      problem.b = b;
      problem.y = y;
      return gpu::elementwise_plan(problem, type == ElementType::kHalf, call.aligned());
    }
    gpu::WholeProblem problem;
    problem.op = op_.of_whole;
    problem.binary = true;
    problem.is_signed = is_signed(type);
    problem.bytes = bytes_of(type);
    problem.a = a;
    problem.b = b;
    problem.y = y;
    return gpu::whole_plan(problem, call.aligned());
  }

  Operation op_;
};

class Selection final : public gpu::DeviceKernel {
 public:
  Selection(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &mask = call.input(0), &a = call.input(1), &b = call.input(2);
    const Shape shape = gpu::broadcast_shape(gpu::broadcast_shape(mask.shape, a.shape), b.shape);
    const Ref y = set_output(call, 0, shape, a.type);
    const auto described = [&](auto problem) {
      problem.masked = problem.binary = true;
      problem.mask = mask.shape;
      problem.a = a.shape;
      problem.b = b.shape;
      problem.y = shape;
      return problem;
    };
    gpu::Plan chosen;
    if (is_float(a.type)) {
      ElementwiseProblem problem;
      problem.op = hip::kWhereOp;
      chosen = gpu::elementwise_plan(described(problem), is_half(a), call.aligned());
    } else {
      gpu::WholeProblem problem;
      problem.op = WholeOp::kWhere;
      problem.bytes = bytes_of(a.type);
      chosen = gpu::whole_plan(described(problem), call.aligned());
    }
    program.launch(std::move(chosen), {Ref::input(1), Ref::input(2), Ref::input(0)}, {y});
  }
};

// Inputs from `first` on must be whole numbers of one type.
std::string refuse_mixed_whole(const Node& node, size_t first = 0) {
  const ElementType type = node.inputs[first].type;
  if (!is_whole(type)) return no_kernel(type);
  for (size_t i = first; i < node.inputs.size(); ++i) {
    if (node.inputs[i].present && node.inputs[i].type != type) return "inputs of two types";
  }
  return "";
}

std::string refuse_mixed(const Node& node) {
  return is_whole(node.type()) ? refuse_mixed_whole(node) : refuse_mixed_floats(node);
}

std::string refuse_selection(const Node& node) {
  const ElementType type = node.inputs[1].type;
  if (is_float(type)) return refuse_mixed_floats(node, {0});
  if (type == ElementType::kBool || type == ElementType::kDouble)
    return node.inputs[2].type == type ? "" : "inputs of two types";
  return refuse_mixed_whole(node, 1);
}

// Of floats only the remainder with the dividend's sign is defined.
std::string refuse_remainder(const Node& node) {
  if (is_float(node.type()) && node.find_int("fmod").value_or(0) == 0)
    return "a remainder of floats without fmod";
  return refuse_mixed(node);
}

Operation remainder_of(const Node& node) {
  return {hip::kFmodOp, node.find_int("fmod").value_or(0) != 0 ? WholeOp::kFmod : WholeOp::kMod};
}

Operation shift_of(const Node& node) {
  return {hip::kCopyOp, node.find_string("direction") == "LEFT" ? WholeOp::kShiftLeft : WholeOp::kShiftRight};
}

std::string refuse_shift(const Node& node) {
  const std::string direction = node.find_string("direction").value_or("");
  if (direction != "LEFT" && direction != "RIGHT") return "this direction is not known";
  return refuse_mixed_whole(node);
}

}  // namespace

void add_elementwise(Kernels& kernels) {
  const auto floats = [](const Node& node) { return refuse_mixed_floats(node); };
  const auto whole_numbers = [](const Node& node) { return refuse_mixed_whole(node); };
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
    kernels.add_onnx<Binary>(name, first, last, Operation{code}).refused(floats).lies(alike);
  };
  const auto any_binary = [&](const char* name, int first, int last, hip::ElementwiseOp code, WholeOp whole) {
    kernels.add_onnx<Binary>(name, first, last, Operation{code, whole})
        .refused(refuse_mixed)
        .takes_rare_types()
        .lies(alike);
  };
  const auto any_unary = [&](const char* name, int first, int last, hip::ElementwiseOp code, WholeOp whole) {
    kernels.add_onnx<AnyUnary>(name, first, last, code, whole)
        .refused(refuse_mixed)
        .takes_rare_types()
        .reuses(Reuse::kInplace)
        .lies(alike);
  };
  const auto whole_binary = [&](const char* name, int first, int last, WholeOp whole) {
    kernels.add_onnx<Binary>(name, first, last, Operation{hip::kCopyOp, whole})
        .refused(whole_numbers)
        .takes_rare_types();
  };
  kernels.add_onnx<Relu>("Relu", 6, 14)
      .refused(refuse_mixed)
      .takes_rare_types()
      .reuses(Reuse::kInplace)
      .lies(alike);
  unary("Sigmoid", 6, 13, hip::kSigmoidOp);
  unary("Tanh", 6, 13, hip::kTanhOp);
  unary("Erf", 9, 13, hip::kErfOp);
  unary("HardSwish", 14, 22, hip::kHardSwishOp);
  unary("Softplus", 1, 22, hip::kSoftplusOp);
  unary("Exp", 6, 13, hip::kExpOp);
  unary("Log", 6, 13, hip::kLogOp);
  unary("Sqrt", 6, 13, hip::kSqrtOp);
  unary("Reciprocal", 6, 13, hip::kReciprocalOp);
  any_unary("Neg", 6, 13, hip::kNegOp, WholeOp::kNeg);
  any_unary("Abs", 6, 13, hip::kAbsOp, WholeOp::kAbs);
  unary("LeakyRelu", 6, 16, hip::kLeakyReluOp, 0.01f, 0.0f);
  unary("HardSigmoid", 6, 22, hip::kHardSigmoidOp, 0.2f, 0.5f);
  unary("Elu", 6, 22, hip::kEluOp, 1.0f, 0.0f);
  kernels.add_onnx<Gelu>("Gelu", 20, 20).refused(floats).reuses(Reuse::kInplace).lies(alike);
  kernels.add_microsoft<Gelu>("Gelu").refused(floats).reuses(Reuse::kInplace);
  kernels.add_microsoft<BiasGelu>("BiasGelu", hip::kGeluOp).refused(floats);
  kernels.add_microsoft<BiasGelu>("FastGelu", hip::kGeluTanhOp).refused(floats);
  kernels.add_onnx<Clip>("Clip", 11, 13)
      .refused(refuse_mixed)
      .takes_rare_types()
      .reuses(Reuse::kInplace)
      .reads_on_host({1, 2})
      .lies(alike);
  any_binary("Add", 7, 14, hip::kAddOp, WholeOp::kAdd);
  any_binary("Sub", 7, 14, hip::kSubOp, WholeOp::kSub);
  any_binary("Mul", 7, 14, hip::kMulOp, WholeOp::kMul);
  any_binary("Div", 7, 14, hip::kDivOp, WholeOp::kDiv);
  binary("Pow", 7, 15, hip::kPowOp);
  binary("PRelu", 7, 16, hip::kPReluOp);
  any_binary("Max", 8, 13, hip::kMaxOp, WholeOp::kMax);
  any_binary("Min", 8, 13, hip::kMinOp, WholeOp::kMin);
  kernels.add_onnx<Selection>("Where", 9, 16).refused(refuse_selection).takes_rare_types();
  whole_binary("BitwiseAnd", 18, 18, WholeOp::kAnd);
  whole_binary("BitwiseOr", 18, 18, WholeOp::kOr);
  whole_binary("BitwiseXor", 18, 18, WholeOp::kXor);
  kernels.add_onnx<WholeUnary>("BitwiseNot", 18, 18, WholeOp::kNot).refused(whole_numbers).takes_rare_types();
  kernels.add_onnx<Binary>("Mod", 10, 28, remainder_of).refused(refuse_remainder).takes_rare_types();
  kernels.add_onnx<Binary>("BitShift", 11, 28, shift_of).refused(refuse_shift).takes_rare_types();
}

}  // namespace graphopt
