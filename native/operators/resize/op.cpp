// Resize of the last two axes.
#include "operators/resize/op.h"

#include <cmath>

#include "operators/room.h"

namespace graphopt {
namespace {

std::optional<gpu::Coordinates> coordinates_of(const Attributes& a) {
  const std::string mode = a.find_string("coordinate_transformation_mode").value_or("half_pixel");
  if (mode == "half_pixel") return gpu::Coordinates::kHalfPixel;
  if (mode == "pytorch_half_pixel") return gpu::Coordinates::kPytorchHalfPixel;
  if (mode == "asymmetric") return gpu::Coordinates::kAsymmetric;
  if (mode == "align_corners") return gpu::Coordinates::kAlignCorners;
  return std::nullopt;
}

std::optional<gpu::Interpolation> interpolation_of(const Attributes& a) {
  const std::string mode = a.find_string("mode").value_or("nearest");
  if (mode == "linear") return gpu::Interpolation::kLinear;
  if (mode != "nearest") return std::nullopt;
  const std::string nearest = a.find_string("nearest_mode").value_or("round_prefer_floor");
  if (nearest == "round_prefer_floor") return gpu::Interpolation::kRoundPreferFloor;
  if (nearest == "round_prefer_ceil") return gpu::Interpolation::kRoundPreferCeil;
  if (nearest == "floor") return gpu::Interpolation::kFloor;
  if (nearest == "ceil") return gpu::Interpolation::kCeil;
  return std::nullopt;
}

// Scales and sizes are inputs 2 and 3; all axes but the last two stay.
class Resize final : public gpu::DeviceKernel {
 public:
  Resize(const Node& node, gpu::Device& device, bool last = false)
      : DeviceKernel(device),
        coordinates_(coordinates_of(node).value()),
        how_(interpolation_of(node).value()),
        last_(last) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const Shape from = last_ ? to_channels_first(x.shape) : x.shape;
    const size_t rank = from.rank();
    if (rank < 3) throw Error("X must have rank 3 or more");
    Shape y = from;
    std::vector<float> scales(rank, 1.0f);
    if (call.has_input(3) && call.input(3).shape.elements() > 0) {
      const std::vector<int64_t> sizes = call.integers(3);
      for (size_t d = 0; d < rank; ++d) {
        y[d] = sizes.at(d);
        scales[d] = static_cast<float>(y[d]) / static_cast<float>(from[d]);
      }
    } else {
      const Tensor& given = call.input(2);
      if (given.shape.elements() != static_cast<int64_t>(rank))
        throw Error("one scale for each axis is needed");
      const auto* p = static_cast<const float*>(given.data);
      for (size_t d = 0; d < rank; ++d) {
        scales[d] = p[d];
        y[d] = static_cast<int64_t>(std::floor(static_cast<float>(from[d]) * p[d]));
      }
    }
    gpu::ResizeProblem p;
    for (size_t d = 0; d < rank; ++d) {
      if (y[d] < 0 || (from[d] == 0 && y[d] > 0)) throw Error("Y cannot have the shape " + y.text());
    }
    for (size_t d = 0; d + 2 < rank; ++d) {
      if (y[d] != from[d]) throw Error("only the last two axes can change");
      if (d == 0 || !last_) p.planes *= y[d];
    }
    const auto axis = [&](size_t d) {
      return gpu::ResizeAxis{gpu::to_i31(from[d]), gpu::to_i31(y[d]), scales[d]};
    };
    p.rows = axis(rank - 2);
    p.columns = axis(rank - 1);
    p.coordinates = coordinates_;
    p.how = how_;
    const Ref out = set_output(call, 0, last_ ? to_channels_last(y) : y);
    program.launch(
        last_ ? gpu::resize_channels_last_plan(p, from[1], call.aligned()) : gpu::resize_plan(p, is_half(x)),
        {Ref::input(0)}, {out});
  }

  gpu::Coordinates coordinates_;
  gpu::Interpolation how_;
  bool last_;
};

// Resizing of the first two of four axes, or with a window or an antialiasing filter, is left to others.
std::string refuse_resize(const Node& node) {
  if (!is_float(node.inputs.front().type)) return "only float and float16";
  if (!coordinates_of(node) || !interpolation_of(node)) return "this mode is not known";
  if (node.find_int("antialias").value_or(0) != 0 || node.find_ints("axes") ||
      node.find_int("exclude_outside").value_or(0) != 0 ||
      node.find_string("keep_aspect_ratio_policy").value_or("stretch") != "stretch") {
    return "antialias, axes, exclude_outside and keep_aspect_ratio_policy are not known";
  }
  const auto& x = node.inputs.front().shape;
  const auto& y = node.outputs.front().shape;
  if (!x || !y || x->rank() < 3 || x->rank() != y->rank()) return "ranks of 3 and more only";
  for (size_t d = 0; d + 2 < x->rank(); ++d) {
    if ((*x)[d] < 0 || (*y)[d] < 0) continue;
    if ((*x)[d] != (*y)[d]) return "only the last two axes may change";
  }
  return "";
}

}  // namespace

void add_resize(Kernels& kernels) {
  kernels.add_onnx<Resize>("Resize", 11, 19)
      .refused(refuse_resize)
      .reads_on_host({1, 2, 3})
      .lies([](const Node&) { return Layout::kFollows; });
  kernels.has_channels_last<Resize>();
}

}  // namespace graphopt
