// GridSample.
#include "operators/image/grid_sample/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

std::optional<int> taps_of(const Attributes& a) {
  return find_choice<std::string, int>(
      a.get_string("mode", "linear"),
      {{"nearest", 1}, {"linear", 2}, {"bilinear", 2}, {"cubic", 4}, {"bicubic", 4}});
}

std::optional<gpu::GridPadding> padding_of(const Attributes& a) {
  using gpu::GridPadding;
  return find_choice<std::string, GridPadding>(a.get_string("padding_mode", "zeros"),
                                               {{"zeros", GridPadding::kZeros},
                                                {"border", GridPadding::kBorder},
                                                {"reflection", GridPadding::kReflection}});
}

// x [N, C, ...], grid [N, ..., axes].
Planner plan_grid_sample(const Node& node) {
  const int taps = taps_of(node).value();
  const gpu::GridPadding padding = padding_of(node).value();
  const bool corners = node.get_bool("align_corners");
  return [=](Call& call, Program& program) {
    const Shape &x = call.input(0).shape, &grid = call.input(1).shape;
    const size_t rank = x.rank();
    throw_if(rank != 4 && rank != 5, "X must have two or three axes besides N and C");
    throw_if(grid.rank() != rank || grid[0] != x[0] || grid[rank - 1] != static_cast<int64_t>(rank) - 2,
             "a grid of ", grid, " does not fit X of ", x);
    gpu::GridSampleProblem p;
    p.N = x[0];
    p.C = x[1];
    p.sizes.assign(x.data() + 2, x.data() + rank);
    Shape y = x;
    for (size_t d = 2; d < rank; ++d) {
      y[d] = grid[d - 1];
      p.points *= y[d];
    }
    p.taps = taps;
    p.padding = padding;
    p.corners = corners;
    const Ref out = set_output(call, 0, y);
    program.launch(gpu::grid_sample_plan(p, is_half(call.input(0))), {Ref::input(0), Ref::input(1)}, {out});
  };
}

std::string refuse_grid_sample(const Node& node) {
  if (!taps_of(node) || !padding_of(node)) return "this mode is not known";
  return refuse_mixed_floats(node);
}

}  // namespace

void add_grid_sample(Kernels& kernels) {
  kernels.add_onnx("GridSample", 16, 22, plan_grid_sample).refused(refuse_grid_sample);
}

}  // namespace graphopt
