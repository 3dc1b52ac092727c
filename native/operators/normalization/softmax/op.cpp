// Softmax, LogSoftmax and LpNormalization.
#include "operators/normalization/softmax/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

class Softmax final : public gpu::DeviceKernel {
 public:
  Softmax(const Node& node, gpu::Device& device, gpu::OverAxis what)
      : DeviceKernel(device),
        what_(what),
        to_the_end_(node.version < 13),
        axis_(node.find_int("axis").value_or(to_the_end_ ? 1 : -1)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    // Below opset 13 the axes from `axis` on are one, and there may be none.
    const bool none = to_the_end_ && axis_ == static_cast<int64_t>(rank);
    const size_t axis = none ? rank : axis_of(axis_, rank);
    const int64_t outer = x.shape.elements(0, axis);
    const int64_t D = to_the_end_ ? x.shape.elements(axis) : x.shape[axis];
    const int64_t inner = to_the_end_ ? 1 : x.shape.elements(axis + 1);
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::softmax_plan(outer, D, inner, what_, is_half(x), call.aligned(), device_.facts()),
                   {Ref::input(0)}, {y});
  }

  gpu::OverAxis what_;
  bool to_the_end_;
  int64_t axis_;
};

// x over its 1- or 2-norm along an axis.
class LpNormalization final : public gpu::DeviceKernel {
 public:
  LpNormalization(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        what_(node.find_int("p").value_or(2) == 1 ? gpu::OverAxis::kLp1 : gpu::OverAxis::kLp2),
        axis_(node.find_int("axis").value_or(-1)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t axis = axis_of(axis_, x.shape.rank());
    const int64_t outer = x.shape.elements(0, axis);
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::softmax_plan(outer, x.shape[axis], x.shape.elements(axis + 1), what_, is_half(x),
                                     call.aligned(), device_.facts()),
                   {Ref::input(0)}, {y});
  }

  gpu::OverAxis what_;
  int64_t axis_;
};

std::string refuse_softmax(const Node& node) {
  return is_float(node.inputs.front().type) ? "" : "only float and float16";
}

std::string refuse_lp_norm(const Node& node) {
  const int64_t p = node.find_int("p").value_or(2);
  return p == 1 || p == 2 ? refuse_softmax(node) : "a norm of order " + std::to_string(p);
}

}  // namespace

void add_softmax(Kernels& kernels) {
  kernels.add_onnx<Softmax>("Softmax", 1, 13, gpu::OverAxis::kSoftmax).refused(refuse_softmax);
  kernels.add_onnx<Softmax>("LogSoftmax", 1, 13, gpu::OverAxis::kLogSoftmax).refused(refuse_softmax);
  kernels.add_onnx<LpNormalization>("LpNormalization", 1, 22).refused(refuse_lp_norm);
}

}  // namespace graphopt
