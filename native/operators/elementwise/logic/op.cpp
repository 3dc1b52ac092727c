// Equal, Less, And, Not, IsNaN, ...
#include "operators/elementwise/logic/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

using hip::LogicOp;

void plan_logic(Call& call, Program& program, LogicOp op, bool binary) {
  const Tensor& a = call.input(0);
  gpu::LogicProblem problem;
  problem.op = op;
  problem.type = a.type;
  problem.binary = binary;
  problem.a = problem.y = a.shape;
  if (binary) {
    problem.b = call.input(1).shape;
    problem.y = gpu::broadcast_shape(a.shape, problem.b);
  }
  const Ref y = set_output(call, 0, problem.y, ElementType::kBool);
  program.launch(gpu::logic_plan(problem, call.aligned()), {Ref::input(0), Ref::input(binary ? 1 : 0)}, {y});
}

Planner plan_logic(LogicOp op, bool binary) {
  return [=](Call& call, Program& program) { plan_logic(call, program, op, binary); };
}

// Detects infinities of both signs unless an attribute excludes a sign.
Planner plan_is_inf(const Node& node) {
  const LogicOp op = !node.get_bool("detect_negative", true)   ? LogicOp::kIsPositiveInf
                     : !node.get_bool("detect_positive", true) ? LogicOp::kIsNegativeInf
                                                               : LogicOp::kIsInf;
  return [=](Call& call, Program& program) { plan_logic(call, program, op, false); };
}

// Returns a refusal unless all inputs have the same type and it is one of `types`.
std::string refuse_types_except(const Node& node, std::initializer_list<ElementType> types) {
  const ElementType type = node.inputs.front().type;
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    return no_kernel(type);
  }
  for (const Value& value : node.inputs) {
    if (value.type != type) return "the inputs have different types";
  }
  return "";
}

std::string refuse_unless_number(const Node& node) {
  return refuse_types_except(
      node, {ElementType::kFloat, ElementType::kHalf, ElementType::kInt8, ElementType::kInt16,
             ElementType::kInt32, ElementType::kInt64, ElementType::kUint8, ElementType::kUint16,
             ElementType::kUint32, ElementType::kUint64});
}

std::string refuse_equal(const Node& node) {
  return node.inputs.front().type == ElementType::kBool ? refuse_types_except(node, {ElementType::kBool})
                                                        : refuse_unless_number(node);
}

std::string refuse_unless_bool(const Node& node) { return refuse_types_except(node, {ElementType::kBool}); }

std::string refuse_unless_float(const Node& node) {
  return refuse_types_except(node, {ElementType::kFloat, ElementType::kHalf});
}

std::string refuse_is_inf(const Node& node) {
  if (!node.get_bool("detect_negative", true) && !node.get_bool("detect_positive", true)) {
    return "detect_negative and detect_positive are both 0";
  }
  return refuse_unless_float(node);
}

}  // namespace

void add_logic(Kernels& kernels) {
  kernels.add_onnx("Equal", 7, 19, plan_logic(LogicOp::kEqual, true))
      .refused(refuse_equal)
      .accepts_all_numbers();
  kernels.add_onnx("Less", 7, 13, plan_logic(LogicOp::kLess, true))
      .refused(refuse_unless_number)
      .accepts_all_numbers();
  kernels.add_onnx("LessOrEqual", 12, 16, plan_logic(LogicOp::kLessOrEqual, true))
      .refused(refuse_unless_number)
      .accepts_all_numbers();
  kernels.add_onnx("Greater", 7, 13, plan_logic(LogicOp::kGreater, true))
      .refused(refuse_unless_number)
      .accepts_all_numbers();
  kernels.add_onnx("GreaterOrEqual", 12, 16, plan_logic(LogicOp::kGreaterOrEqual, true))
      .refused(refuse_unless_number)
      .accepts_all_numbers();
  kernels.add_onnx("And", 7, 7, plan_logic(LogicOp::kAnd, true)).refused(refuse_unless_bool);
  kernels.add_onnx("Or", 7, 7, plan_logic(LogicOp::kOr, true)).refused(refuse_unless_bool);
  kernels.add_onnx("Xor", 7, 7, plan_logic(LogicOp::kXor, true)).refused(refuse_unless_bool);
  kernels.add_onnx("Not", 1, 1, plan_logic(LogicOp::kNot, false)).refused(refuse_unless_bool);
  kernels.add_onnx("IsNaN", 9, 20, plan_logic(LogicOp::kIsNaN, false)).refused(refuse_unless_float);
  kernels.add_onnx("IsInf", 10, 20, plan_is_inf).refused(refuse_is_inf);
}

}  // namespace graphopt
