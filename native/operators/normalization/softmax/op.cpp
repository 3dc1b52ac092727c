// Softmax, LogSoftmax and LpNormalization.
#include "operators/normalization/softmax/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

Planner plan_softmax(const Node& node, gpu::AxisFunction function) {
  const bool flattens = node.version < 13;
  const int64_t given = node.get_int("axis", flattens ? 1 : -1);
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    // Below opset 13 the axes from `axis` on form one axis. `axis` may equal the rank.
    const bool axis_is_rank = flattens && given == static_cast<int64_t>(rank);
    const size_t axis = axis_is_rank ? rank : axis_of(given, rank);
    const int64_t outer = x.shape.elements(0, axis);
    const int64_t D = flattens ? x.shape.elements(axis) : x.shape[axis];
    const int64_t inner = flattens ? 1 : x.shape.elements(axis + 1);
    const Ref y = set_output(call, 0, x.shape);
    program.launch(
        gpu::softmax_plan(outer, D, inner, function, is_half(x), call.aligned(), program.device().facts()),
        {Ref::input(0)}, {y});
  };
}

// Plans the division of x by its 1-norm or 2-norm along an axis.
Planner plan_lp_normalization(const Node& node) {
  const gpu::AxisFunction function =
      node.get_int("p", 2) == 1 ? gpu::AxisFunction::kLp1 : gpu::AxisFunction::kLp2;
  const int64_t given = node.get_int("axis", -1);
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const auto [outer, D, inner] = split_at(x.shape, axis_of(given, x.shape.rank()));
    const Ref y = set_output(call, 0, x.shape);
    program.launch(
        gpu::softmax_plan(outer, D, inner, function, is_half(x), call.aligned(), program.device().facts()),
        {Ref::input(0)}, {y});
  };
}

std::string refuse_softmax(const Node& node) {
  return is_float(node.inputs.front().type) ? "" : "the type is neither float nor float16";
}

std::string refuse_lp_norm(const Node& node) {
  const int64_t p = node.get_int("p", 2);
  return p == 1 || p == 2 ? refuse_softmax(node) : "p is " + std::to_string(p);
}

}  // namespace

void add_softmax(Kernels& kernels) {
  kernels.add_onnx("Softmax", 1, 13, plan_softmax, gpu::AxisFunction::kSoftmax).refused(refuse_softmax);
  kernels.add_onnx("LogSoftmax", 1, 13, plan_softmax, gpu::AxisFunction::kLogSoftmax).refused(refuse_softmax);
  kernels.add_onnx("LpNormalization", 1, 22, plan_lp_normalization).refused(refuse_lp_norm);
}

}  // namespace graphopt
