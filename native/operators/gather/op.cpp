// Gather.
#include "operators/gather/op.h"

#include "operators/room.h"

namespace graphopt {
namespace {

class Gather final : public gpu::DeviceKernel {
 public:
  Gather(const Node& node, gpu::Device& device)
      : DeviceKernel(device), axis_(node.find_int("axis").value_or(0)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &index = call.input(1);
    const size_t axis = axis_of(axis_, x.shape.rank()), added = index.shape.rank();
    Shape y(x.shape.rank() - 1 + added);
    for (size_t d = 0; d < axis; ++d) y[d] = x.shape[d];
    for (size_t d = 0; d < added; ++d) y[axis + d] = index.shape[d];
    for (size_t d = axis + 1; d < x.shape.rank(); ++d) y[d - 1 + added] = x.shape[d];
    gpu::GatherProblem p;
    for (size_t d = 0; d < axis; ++d) p.outer *= x.shape[d];
    p.size = x.shape[axis];
    p.inner = x.shape.elements(axis + 1);
    p.indices = index.shape.elements();
    p.bytes = bytes_of(x.type);
    p.narrow = index.type == ElementType::kInt32;
    const Ref out = set_output(call, 0, y);
    program.launch(gpu::gather_plan(p, call.aligned()), {Ref::input(0), Ref::input(1)}, {out});
  }

  int64_t axis_;
};

std::string refuse_gather(const Node& node) {
  return bytes_of(node.inputs[0].type) >= 2 ? "" : "only elements of 2, 4 and 8 bytes";
}

}  // namespace

void add_gather(Kernels& kernels) { kernels.add_onnx<Gather>("Gather", 1, 13).refused(refuse_gather); }

}  // namespace graphopt
