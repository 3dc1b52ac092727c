// Relu, Add, Where, ...
#include "operators/elementwise/elementwise/op.h"

#include <limits>
#include <utility>

#include "operators/kernel_bases.h"

namespace graphopt {

void plan_integer_unary(Call& call, Program& program, gpu::IntegerOp op, int64_t low, int64_t high) {
  const Tensor& x = call.input(0);
  gpu::IntegerElementwiseProblem problem;
  problem.op = op;
  problem.is_signed = is_signed(x.type);
  problem.bytes = bytes_of(x.type);
  problem.low = low;
  problem.high = high;
  problem.a = problem.y = x.shape;
  const Ref y = set_output(call, 0, x.shape);
  program.launch(gpu::integer_elementwise_plan(problem, call.aligned()), {Ref::input(0)}, {y});
}

namespace {

using gpu::ElementwiseProblem;
using gpu::IntegerOp;

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

// p and q are the defaults of the attributes alpha and beta.
Planner plan_unary_of(const Node& node, hip::ElementwiseOp op, float p, float q) {
  return [=, p = node.get_float("alpha", p), q = node.get_float("beta", q)](Call& call, Program& program) {
    plan_unary(call, program, op, p, q);
  };
}

Planner plan_gelu(const Node& node) {
  const bool tanh = node.get_string("approximate", "none") == "tanh";
  return [=](Call& call, Program& program) {
    plan_unary(call, program, hip::elementwise_op(tanh ? ActivationKind::kGeluTanh : ActivationKind::kGelu),
               0, 0);
  };
}

// Plans op(A + B), or op(A) if B is omitted.
Planner plan_bias_gelu(ActivationKind kind) {
  const hip::ElementwiseOp op = hip::elementwise_op(kind);
  return [=](Call& call, Program& program) {
    if (!call.has_input(1)) return plan_unary(call, program, op, 0, 0);
    const Tensor &a = call.input(0), &b = call.input(1);
    const Ref y = set_output(call, 0, a.shape);
    program.launch(gpu::add_plan(a.shape, b.shape, is_half(a), call.aligned()),
                   {Ref::input(0), Ref::input(1)}, {y});
    ElementwiseProblem gelu;
    gelu.op = op;
    gelu.a = gelu.y = a.shape;
    program.launch(gpu::elementwise_plan(gelu, is_half(a), call.aligned()), {y}, {y});
  };
}

// Plans Neg or Abs, for floats and integers.
Planner plan_any_unary(hip::ElementwiseOp op, IntegerOp integer_op) {
  return [=](Call& call, Program& program) {
    if (is_float(call.input(0).type)) {
      plan_unary(call, program, op, 0, 0);
    } else {
      plan_integer_unary(call, program, integer_op);
    }
  };
}

// Returns an integer limit of Clip: input 1 is the minimum, input 2 the maximum. Returns `absent` if the input is
// omitted. A limit of type uint64 is returned with the same bits.
int64_t limit(const Call& call, size_t i, int64_t absent) {
  return call.has_input(i) ? call.integer(i, "a limit") : absent;
}

// Plans Clip; both limits are optional.
void plan_clip(Call& call, Program& program) {
  if (is_float(call.input(0).type)) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    plan_unary(call, program, hip::elementwise_op(ActivationKind::kClip), call.number(1, -kInfinity),
               call.number(2, kInfinity));
  } else {
    const bool is_uint64 = call.input(0).type == ElementType::kUint64;
    constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(),
                      kHighest = std::numeric_limits<int64_t>::max();
    plan_integer_unary(call, program, IntegerOp::kClip, limit(call, 1, is_uint64 ? 0 : kLowest),
                       limit(call, 2, is_uint64 ? -1 : kHighest));
  }
}

void plan_relu(Call& call, Program& program) {
  if (is_float(call.input(0).type)) {
    plan_unary(call, program, hip::elementwise_op(ActivationKind::kRelu), 0, 0);
  } else {
    plan_integer_unary(call, program, IntegerOp::kClip, 0, std::numeric_limits<int64_t>::max());
  }
}

// The operation for floats, for integers, or for both.
struct Operation {
  hip::ElementwiseOp float_op = hip::kCopyOp;
  IntegerOp integer_op = IntegerOp::kNeg;
};

gpu::Plan binary_step(const Call& call, Operation op, const Shape& a, const Shape& b, const Shape& y) {
  const ElementType type = call.input(0).type;
  const auto with_shapes = [&](auto problem) {
    problem.binary = true;
    problem.a = a;
    problem.b = b;
    problem.y = y;
    return problem;
  };
  if (is_float(type)) {
    ElementwiseProblem problem;
    problem.op = op.float_op;
    return gpu::elementwise_plan(with_shapes(problem), type == ElementType::kHalf, call.aligned());
  }
  gpu::IntegerElementwiseProblem problem;
  problem.op = op.integer_op;
  problem.is_signed = is_signed(type);
  problem.bytes = bytes_of(type);
  return gpu::integer_elementwise_plan(with_shapes(problem), call.aligned());
}

// Plans an operator with two inputs. Max and Min may have any number of inputs.
Planner plan_binary(Operation op) {
  return [=](Call& call, Program& program) {
    const size_t n = call.inputs.size();
    Shape shape = call.input(0).shape;
    for (size_t i = 1; i < n; ++i) shape = gpu::broadcast_shape(shape, call.input(i).shape);
    const Ref y = set_output(call, 0, shape);
    Ref a = Ref::input(0);
    Shape a_shape = call.input(0).shape;
    for (size_t i = 1; i < n || i == 1; ++i) {
      const Shape b_shape = n > 1 ? call.input(i).shape : a_shape;
      program.launch(binary_step(call, op, a_shape, b_shape, shape), {a, n > 1 ? Ref::input(i) : a}, {y});
      a = y;
      a_shape = shape;
    }
  };
}

void plan_selection(Call& call, Program& program) {
  const Tensor &mask = call.input(0), &a = call.input(1), &b = call.input(2);
  const Shape shape = gpu::broadcast_shape(gpu::broadcast_shape(mask.shape, a.shape), b.shape);
  const Ref y = set_output(call, 0, shape, a.type);
  const auto with_shapes = [&](auto problem) {
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
    chosen = gpu::elementwise_plan(with_shapes(problem), is_half(a), call.aligned());
  } else {
    gpu::IntegerElementwiseProblem problem;
    problem.op = IntegerOp::kWhere;
    problem.bytes = bytes_of(a.type);
    chosen = gpu::integer_elementwise_plan(with_shapes(problem), call.aligned());
  }
  program.launch(std::move(chosen), {Ref::input(1), Ref::input(2), Ref::input(0)}, {y});
}

// Returns a refusal unless all inputs from `first` on are integers of one type.
std::string refuse_mixed_integers(const Node& node, size_t first = 0) {
  const ElementType type = node.inputs[first].type;
  if (!is_integer(type)) return no_kernel(type);
  for (size_t i = first; i < node.inputs.size(); ++i) {
    if (node.inputs[i].present && node.inputs[i].type != type) return "the inputs have different types";
  }
  return "";
}

std::string refuse_mixed(const Node& node) {
  return is_integer(node.type()) ? refuse_mixed_integers(node) : refuse_mixed_floats(node);
}

std::string refuse_selection(const Node& node) {
  const ElementType type = node.inputs[1].type;
  if (is_float(type)) return refuse_mixed_floats(node, {0});
  if (type == ElementType::kBool || type == ElementType::kDouble)
    return node.inputs[2].type == type ? "" : "the inputs have different types";
  return refuse_mixed_integers(node, 1);
}

// For floats, ONNX only defines the remainder with the dividend's sign (fmod = 1).
std::string refuse_remainder(const Node& node) {
  if (is_float(node.type()) && !node.get_bool("fmod")) return "fmod is 0 for floats";
  return refuse_mixed(node);
}

Planner plan_remainder(const Node& node) {
  return plan_binary({hip::kFmodOp, node.get_bool("fmod") ? IntegerOp::kFmod : IntegerOp::kMod});
}

Planner plan_shift(const Node& node) {
  const bool left = node.find_string("direction") == "LEFT";
  return plan_binary({hip::kCopyOp, left ? IntegerOp::kShiftLeft : IntegerOp::kShiftRight});
}

std::string refuse_shift(const Node& node) {
  const std::string direction = node.get_string("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") return "direction is not LEFT or RIGHT";
  return refuse_mixed_integers(node);
}

void add_integer_operators(Kernels& kernels) {
  const auto integers = [](const Node& node) { return refuse_mixed_integers(node); };
  const auto binary = [&](const char* name, int first, int last, IntegerOp op) {
    kernels.add_onnx(name, first, last, plan_binary({hip::kCopyOp, op}))
        .refused(integers)
        .accepts_all_numbers();
  };
  binary("BitwiseAnd", 18, 18, IntegerOp::kAnd);
  binary("BitwiseOr", 18, 18, IntegerOp::kOr);
  binary("BitwiseXor", 18, 18, IntegerOp::kXor);
  const auto plan_not = [](Call& call, Program& program) {
    plan_integer_unary(call, program, IntegerOp::kNot);
  };
  kernels.add_onnx("BitwiseNot", 18, 18, plan_not).refused(integers).accepts_all_numbers();
  kernels.add_onnx("Mod", 10, 28, plan_remainder).refused(refuse_remainder).accepts_all_numbers();
  kernels.add_onnx("BitShift", 11, 28, plan_shift).refused(refuse_shift).accepts_all_numbers();
}

}  // namespace

void add_elementwise(Kernels& kernels) {
  const auto floats = [](const Node& node) { return refuse_mixed_floats(node); };
  const auto any_layout = [](const Node&) { return Layout::kAny; };
  const auto unary = [&](const char* name, int first, int last, hip::ElementwiseOp code, float p = 0,
                         float q = 0) {
    kernels.add_onnx(name, first, last, plan_unary_of, code, p, q)
        .refused(floats)
        .reuses(Reuse::kInplace)
        .with_layout(any_layout);
  };
  // Not Reuse::kInplace, which would let the runtime write the output over an input that is broadcast.
  const auto binary = [&](const char* name, int first, int last, hip::ElementwiseOp code) {
    kernels.add_onnx(name, first, last, plan_binary({code})).refused(floats).with_layout(any_layout);
  };
  const auto any_binary = [&](const char* name, int first, int last, hip::ElementwiseOp code, IntegerOp op) {
    kernels.add_onnx(name, first, last, plan_binary({code, op}))
        .refused(refuse_mixed)
        .accepts_all_numbers()
        .with_layout(any_layout);
  };
  const auto any_unary = [&](const char* name, int first, int last, hip::ElementwiseOp code, IntegerOp op) {
    kernels.add_onnx(name, first, last, plan_any_unary(code, op))
        .refused(refuse_mixed)
        .accepts_all_numbers()
        .reuses(Reuse::kInplace)
        .with_layout(any_layout);
  };
  kernels.add_onnx("Relu", 6, 14, plan_relu)
      .refused(refuse_mixed)
      .accepts_all_numbers()
      .reuses(Reuse::kInplace)
      .with_layout(any_layout);
  unary("Sigmoid", 6, 13, hip::elementwise_op(ActivationKind::kSigmoid));
  unary("Tanh", 6, 13, hip::elementwise_op(ActivationKind::kTanh));
  unary("Erf", 9, 13, hip::kErfOp);
  unary("HardSwish", 14, 22, hip::elementwise_op(ActivationKind::kHardSwish));
  unary("Softplus", 1, 22, hip::kSoftplusOp);
  unary("Exp", 6, 13, hip::kExpOp);
  unary("Log", 6, 13, hip::kLogOp);
  unary("Sqrt", 6, 13, hip::kSqrtOp);
  unary("Reciprocal", 6, 13, hip::kReciprocalOp);
  any_unary("Neg", 6, 13, hip::kNegOp, IntegerOp::kNeg);
  any_unary("Abs", 6, 13, hip::kAbsOp, IntegerOp::kAbs);
  unary("LeakyRelu", 6, 16, hip::elementwise_op(ActivationKind::kLeakyRelu), 0.01f, 0.0f);
  unary("HardSigmoid", 6, 22, hip::elementwise_op(ActivationKind::kHardSigmoid), 0.2f, 0.5f);
  unary("Elu", 6, 22, hip::kEluOp, 1.0f, 0.0f);
  kernels.add_onnx("Gelu", 20, 20, plan_gelu).refused(floats).reuses(Reuse::kInplace).with_layout(any_layout);
  kernels.add_microsoft("Gelu", plan_gelu).refused(floats).reuses(Reuse::kInplace);
  kernels.add_microsoft("BiasGelu", plan_bias_gelu(ActivationKind::kGelu)).refused(floats);
  kernels.add_microsoft("FastGelu", plan_bias_gelu(ActivationKind::kGeluTanh)).refused(floats);
  kernels.add_onnx("Clip", 11, 13, plan_clip)
      .refused(refuse_mixed)
      .accepts_all_numbers()
      .reuses(Reuse::kInplace)
      .reads_on_host({1, 2})
      .with_layout(any_layout);
  any_binary("Add", 7, 14, hip::kAddOp, IntegerOp::kAdd);
  any_binary("Sub", 7, 14, hip::kSubOp, IntegerOp::kSub);
  any_binary("Mul", 7, 14, hip::kMulOp, IntegerOp::kMul);
  any_binary("Div", 7, 14, hip::kDivOp, IntegerOp::kDiv);
  binary("Pow", 7, 15, hip::kPowOp);
  binary("PRelu", 7, 16, hip::kPReluOp);
  any_binary("Max", 8, 13, hip::kMaxOp, IntegerOp::kMax);
  any_binary("Min", 8, 13, hip::kMinOp, IntegerOp::kMin);
  kernels.add_onnx("Where", 9, 16, plan_selection).refused(refuse_selection).accepts_all_numbers();
  add_integer_operators(kernels);
}

}  // namespace graphopt
