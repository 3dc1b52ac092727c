// CumSum.
#include "operators/sequence/cumsum/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// The axis is input 1.
class CumSum final : public gpu::DeviceKernel {
 public:
  CumSum(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        reverse_(node.find_int("reverse").value_or(0) != 0),
        exclusive_(node.find_int("exclusive").value_or(0) != 0) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const std::vector<int64_t> given = call.integers(1);
    if (given.size() != 1) throw Error("the axis must be one number");
    const size_t axis = axis_of(given[0], x.shape.rank());
    gpu::CumSumProblem p;
    p.outer = x.shape.elements(0, axis);
    p.size = x.shape[axis];
    p.inner = x.shape.elements(axis + 1);
    p.reverse = reverse_;
    p.exclusive = exclusive_;
    p.type = x.type;
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::cumsum_plan(p, device_.facts()), {Ref::input(0)}, {y});
  }

  bool reverse_, exclusive_;
};

}  // namespace

void add_cumsum(Kernels& kernels) {
  Registration& r = kernels.add_onnx<CumSum>("CumSum", 11, 14).reads_on_host({1}).takes_rare_types();
  r.types = {ElementType::kFloat, ElementType::kHalf,   ElementType::kInt32,
             ElementType::kInt64, ElementType::kUint32, ElementType::kUint64};
}

}  // namespace graphopt
