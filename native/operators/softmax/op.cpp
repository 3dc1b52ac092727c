// Softmax and LogSoftmax over the last axis.
#include "operators/softmax/op.h"

#include "operators/room.h"

namespace graphopt {
namespace {

class Softmax final : public gpu::DeviceKernel {
 public:
  Softmax(const Node&, gpu::Device& device, bool log) : DeviceKernel(device), log_(log) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    if (x.shape.rank() == 0) throw Error("a scalar has no last axis");
    const int64_t D = x.shape.elements(x.shape.rank() - 1), rows = D == 0 ? 0 : x.shape.elements() / D;
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::softmax_plan(rows, D, log_, is_half(x), device_.facts()), {Ref::input(0)}, {y});
  }

  bool log_;
};

// Below opset 13 the axes from `axis` on are one; then, too, the last axis is the only one when it is given.
std::string refuse_softmax(const Node& node) {
  if (!is_float(node.inputs.front().type)) return "only float and float16";
  return refuse_unless_last(node, node.find_int("axis").value_or(node.version < 13 ? 1 : -1));
}

}  // namespace

void add_softmax(Kernels& kernels) {
  kernels.add_onnx<Softmax>("Softmax", 1, 13, false).refused(refuse_softmax);
  kernels.add_onnx<Softmax>("LogSoftmax", 1, 13, true).refused(refuse_softmax);
}

}  // namespace graphopt
