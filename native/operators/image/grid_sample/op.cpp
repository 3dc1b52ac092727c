// GridSample.
#include "operators/image/grid_sample/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

std::optional<int> taps_of(const Attributes& a) {
  const std::string mode = a.find_string("mode").value_or("linear");
  if (mode == "nearest") return 1;
  if (mode == "linear" || mode == "bilinear") return 2;
  if (mode == "cubic" || mode == "bicubic") return 4;
  return std::nullopt;
}

std::optional<gpu::Beyond> beyond_of(const Attributes& a) {
  const std::string mode = a.find_string("padding_mode").value_or("zeros");
  if (mode == "zeros") return gpu::Beyond::kZeros;
  if (mode == "border") return gpu::Beyond::kBorder;
  if (mode == "reflection") return gpu::Beyond::kReflection;
  return std::nullopt;
}

// x [N, C, ...], grid [N, ..., axes].
class GridSample final : public gpu::DeviceKernel {
 public:
  GridSample(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        taps_(taps_of(node).value()),
        beyond_(beyond_of(node).value()),
        corners_(node.find_int("align_corners").value_or(0) != 0) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Shape &x = call.input(0).shape, &grid = call.input(1).shape;
    const size_t rank = x.rank();
    if (rank != 4 && rank != 5) throw Error("X must have two or three axes besides N and C");
    if (grid.rank() != rank || grid[0] != x[0] || grid[rank - 1] != static_cast<int64_t>(rank) - 2) {
      throw Error("a grid of " + grid.text() + " does not fit X of " + x.text());
    }
    gpu::GridSampleProblem p;
    p.N = x[0];
    p.C = x[1];
    p.sizes.assign(x.data() + 2, x.data() + rank);
    Shape y = x;
    for (size_t d = 2; d < rank; ++d) {
      y[d] = grid[d - 1];
      p.points *= y[d];
    }
    p.taps = taps_;
    p.beyond = beyond_;
    p.corners = corners_;
    const Ref out = set_output(call, 0, y);
    program.launch(gpu::grid_sample_plan(p, is_half(call.input(0))), {Ref::input(0), Ref::input(1)}, {out});
  }

  int taps_;
  gpu::Beyond beyond_;
  bool corners_;
};

std::string refuse_grid_sample(const Node& node) {
  if (!taps_of(node) || !beyond_of(node)) return "this mode is not known";
  return refuse_mixed_floats(node);
}

}  // namespace

void add_grid_sample(Kernels& kernels) {
  kernels.add_onnx<GridSample>("GridSample", 16, 22).refused(refuse_grid_sample);
}

}  // namespace graphopt
