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

class Logic final : public gpu::DeviceKernel {
 public:
  Logic(const Node&, gpu::Device& device, LogicOp op, bool binary)
      : DeviceKernel(device), op_(op), binary_(binary) {}

 private:
  void plan(Call& call, Program& program) const override { plan_logic(call, program, op_, binary_); }

  LogicOp op_;
  bool binary_;
};

// Either sign unless an attribute leaves one out.
class IsInf final : public gpu::DeviceKernel {
 public:
  IsInf(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        op_(node.find_int("detect_negative").value_or(1) == 0   ? LogicOp::kIsPositiveInf
            : node.find_int("detect_positive").value_or(1) == 0 ? LogicOp::kIsNegativeInf
                                                                : LogicOp::kIsInf) {}

 private:
  void plan(Call& call, Program& program) const override { plan_logic(call, program, op_, false); }

  LogicOp op_;
};

// All inputs are of one of these types.
std::string refuse_unless(const Node& node, std::initializer_list<ElementType> types) {
  const ElementType type = node.inputs.front().type;
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    return no_kernel(type);
  }
  for (const Value& value : node.inputs) {
    if (value.type != type) return "inputs of two types";
  }
  return "";
}

std::string refuse_numbers(const Node& node) {
  return refuse_unless(node,
                       {ElementType::kFloat, ElementType::kHalf, ElementType::kInt8, ElementType::kInt16,
                        ElementType::kInt32, ElementType::kInt64, ElementType::kUint8, ElementType::kUint16,
                        ElementType::kUint32, ElementType::kUint64});
}

std::string refuse_equal(const Node& node) {
  return node.inputs.front().type == ElementType::kBool ? refuse_unless(node, {ElementType::kBool})
                                                        : refuse_numbers(node);
}

std::string refuse_truth(const Node& node) { return refuse_unless(node, {ElementType::kBool}); }

std::string refuse_floats(const Node& node) {
  return refuse_unless(node, {ElementType::kFloat, ElementType::kHalf});
}

std::string refuse_is_inf(const Node& node) {
  if (node.find_int("detect_negative").value_or(1) == 0 &&
      node.find_int("detect_positive").value_or(1) == 0) {
    return "no infinity is asked for";
  }
  return refuse_floats(node);
}

}  // namespace

void add_logic(Kernels& kernels) {
  kernels.add_onnx<Logic>("Equal", 7, 19, LogicOp::kEqual, true).refused(refuse_equal).takes_rare_types();
  kernels.add_onnx<Logic>("Less", 7, 13, LogicOp::kLess, true).refused(refuse_numbers).takes_rare_types();
  kernels.add_onnx<Logic>("LessOrEqual", 12, 16, LogicOp::kLessOrEqual, true)
      .refused(refuse_numbers)
      .takes_rare_types();
  kernels.add_onnx<Logic>("Greater", 7, 13, LogicOp::kGreater, true)
      .refused(refuse_numbers)
      .takes_rare_types();
  kernels.add_onnx<Logic>("GreaterOrEqual", 12, 16, LogicOp::kGreaterOrEqual, true)
      .refused(refuse_numbers)
      .takes_rare_types();
  kernels.add_onnx<Logic>("And", 7, 7, LogicOp::kAnd, true).refused(refuse_truth);
  kernels.add_onnx<Logic>("Or", 7, 7, LogicOp::kOr, true).refused(refuse_truth);
  kernels.add_onnx<Logic>("Xor", 7, 7, LogicOp::kXor, true).refused(refuse_truth);
  kernels.add_onnx<Logic>("Not", 1, 1, LogicOp::kNot, false).refused(refuse_truth);
  kernels.add_onnx<Logic>("IsNaN", 9, 20, LogicOp::kIsNaN, false).refused(refuse_floats);
  kernels.add_onnx<IsInf>("IsInf", 10, 20).refused(refuse_is_inf);
}

}  // namespace graphopt
