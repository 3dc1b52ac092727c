// Operators that move elements: Transpose, Slice, Concat, Split, Expand, Gather, Pad, Resize, and Cast.
#include <algorithm>
#include <cmath>
#include <limits>

#include "blocks/half.h"
#include "operators/gather/plan.h"
#include "operators/movement/plan.h"
#include "operators/pool/plan.h"
#include "operators/standard.h"

namespace graphopt::ep {
namespace {

using gpu::StridedCopy;

void strided_copy(const Call& call, Program& program, const StridedCopy& copy, size_t x, Ref y) {
  program.launch(gpu::strided_copy_plan(copy, call.aligned()), {Ref::input(x)}, {y});
}

class Transpose final : public gpu::DeviceKernel {
 public:
  Transpose(const Node& node, gpu::Device& device)
      : DeviceKernel(device), perm_(node.find_ints("perm").value_or(std::vector<int64_t>())) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    StridedCopy copy;
    copy.shape = Shape(rank);
    copy.bytes = bytes_of(x.type);
    copy.x_strides.resize(rank);
    if (!perm_.empty() && perm_.size() != rank) throw Error("perm has another length than the shape");
    std::vector<bool> seen(rank);
    const std::vector<int64_t> strides = gpu::contiguous(x.shape);
    for (size_t d = 0; d < rank; ++d) {
      const size_t from = perm_.empty() ? rank - 1 - d : axis_of(perm_[d], rank);
      if (seen[from]) throw Error("perm names an axis twice");
      seen[from] = true;
      copy.shape[d] = x.shape[from];
      copy.x_strides[d] = strides[from];
    }
    copy.y_strides = gpu::contiguous(copy.shape);
    strided_copy(call, program, copy, 0, set_output(call, 0, copy.shape));
  }

  std::vector<int64_t> perm_;
};

class Expand final : public gpu::DeviceKernel {
 public:
  Expand(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const std::vector<int64_t> dims = call.integers(1);
    Shape wanted(dims.size());
    std::copy(dims.begin(), dims.end(), wanted.data());
    StridedCopy copy;
    copy.shape = gpu::broadcast_shape(x.shape, wanted);
    copy.bytes = bytes_of(x.type);
    copy.x_strides = gpu::broadcast(x.shape, copy.shape);
    copy.y_strides = gpu::contiguous(copy.shape);
    strided_copy(call, program, copy, 0, set_output(call, 0, copy.shape));
  }
};

// Starts, ends, axes and steps are inputs 1 to 4.
class Slice final : public gpu::DeviceKernel {
 public:
  Slice(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    const std::vector<int64_t> starts = call.integers(1), ends = call.integers(2);
    std::vector<int64_t> axes(starts.size()), steps(starts.size(), 1);
    for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
    if (call.has_input(3)) axes = call.integers(3);
    if (call.has_input(4)) steps = call.integers(4);
    if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
      throw Error("starts, ends, axes and steps must have one length");
    }
    StridedCopy copy;
    copy.shape = x.shape;
    copy.bytes = bytes_of(x.type);
    copy.x_strides = gpu::contiguous(x.shape);
    for (size_t i = 0; i < axes.size(); ++i) {
      const size_t axis = axis_of(axes[i], rank);
      const int64_t dim = x.shape[axis], step = steps[i];
      if (step == 0) throw Error("a step of 0");
      const auto clamp = [dim, step](int64_t at) {
        at = at < 0 ? std::max<int64_t>(at, -dim - 1) + dim : at;
        return step > 0 ? std::clamp<int64_t>(at, 0, dim) : std::clamp<int64_t>(at, -1, dim - 1);
      };
      const int64_t begin = clamp(starts[i]), end = clamp(ends[i]);
      const int64_t span = step > 0 ? end - begin : begin - end, stride = step > 0 ? step : -step;
      copy.shape[axis] = span > 0 ? (span - 1) / stride + 1 : 0;
      copy.x_offset += begin * copy.x_strides[axis];
      copy.x_strides[axis] *= step;
    }
    copy.y_strides = gpu::contiguous(copy.shape);
    strided_copy(call, program, copy, 0, set_output(call, 0, copy.shape));
  }
};

class Concat final : public gpu::DeviceKernel {
 public:
  Concat(const Node& node, gpu::Device& device)
      : DeviceKernel(device), axis_(node.find_int("axis").value_or(0)) {}

 private:
  void plan(Call& call, Program& program) const override {
    Shape y = call.input(0).shape;
    const size_t axis = axis_of(axis_, y.rank());
    y[axis] = 0;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      Shape x = call.input(i).shape;
      if (x.rank() != y.rank()) throw Error("inputs of different ranks");
      y[axis] += x[axis];
      x[axis] = y[axis];
      if (!(x == y)) throw Error("inputs differ in another axis than the one that is joined");
    }
    const Ref out = set_output(call, 0, y);
    const std::vector<int64_t> strides = gpu::contiguous(y);
    int64_t at = 0;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Tensor& x = call.input(i);
      StridedCopy copy;
      copy.shape = x.shape;
      copy.bytes = bytes_of(x.type);
      copy.x_strides = gpu::contiguous(x.shape);
      copy.y_strides = strides;
      copy.y_offset = at * strides[axis];
      strided_copy(call, program, copy, i, out);
      at += x.shape[axis];
    }
  }

  int64_t axis_;
};

// The sizes are input 1, an attribute below opset 13, or equal.
class Split final : public gpu::DeviceKernel {
 public:
  Split(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        axis_(node.find_int("axis").value_or(0)),
        sizes_(node.find_ints("split").value_or(std::vector<int64_t>())) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t axis = axis_of(axis_, x.shape.rank()), outputs = call.outputs.size();
    std::vector<int64_t> sizes = call.has_input(1) ? call.integers(1) : sizes_;
    if (sizes.empty()) {
      const auto n = static_cast<int64_t>(outputs);
      const int64_t each = (x.shape[axis] + n - 1) / n;
      sizes.assign(outputs, each);
      sizes.back() = x.shape[axis] - each * (n - 1);
    }
    const std::vector<int64_t> strides = gpu::contiguous(x.shape);
    int64_t at = 0;
    for (size_t i = 0; i < outputs; ++i) {
      StridedCopy copy;
      copy.shape = x.shape;
      copy.shape[axis] = sizes.at(i);
      if (sizes[i] < 0 || sizes[i] > x.shape[axis] - at) throw Error("the parts are larger than the axis");
      copy.bytes = bytes_of(x.type);
      copy.x_strides = strides;
      copy.x_offset = at * strides[axis];
      copy.y_strides = gpu::contiguous(copy.shape);
      strided_copy(call, program, copy, 0, set_output(call, i, copy.shape));
      at += sizes[i];
    }
  }

  int64_t axis_;
  std::vector<int64_t> sizes_;
};

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

std::optional<gpu::PadMode> pad_mode(const Attributes& a) {
  const std::string mode = a.find_string("mode").value_or("constant");
  if (mode == "constant") return gpu::PadMode::kConstant;
  if (mode == "reflect") return gpu::PadMode::kReflect;
  if (mode == "edge") return gpu::PadMode::kEdge;
  return std::nullopt;
}

// Pads, value and axes are inputs 1 to 3.
class Pad final : public gpu::DeviceKernel {
 public:
  Pad(const Node& node, gpu::Device& device) : DeviceKernel(device), mode_(pad_mode(node).value()) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    const std::vector<int64_t> pads = call.integers(1);
    gpu::PadProblem p;
    p.x = x.shape;
    p.before.assign(rank, 0);
    p.after.assign(rank, 0);
    std::vector<int64_t> axes(pads.size() / 2);
    for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
    if (call.has_input(3)) axes = call.integers(3);
    if (pads.size() != 2 * axes.size()) throw Error("two pads for each axis are needed");
    for (size_t i = 0; i < axes.size(); ++i) {
      p.before[axis_of(axes[i], rank)] = pads[i];
      p.after[axis_of(axes[i], rank)] = pads[axes.size() + i];
    }
    p.mode = mode_;
    p.bytes = bytes_of(x.type);
    const float value = call.number(2, 0.0f);
    if (is_half(x)) {
      const half h = value;
      std::memcpy(&p.value, &h, sizeof h);
    } else {
      std::memcpy(&p.value, &value, sizeof value);
    }
    const Ref y = set_output(call, 0, p.y());
    program.launch(gpu::pad_plan(p), {Ref::input(0)}, {y});
  }

  gpu::PadMode mode_;
};

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
  Resize(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        coordinates_(coordinates_of(node).value()),
        how_(interpolation_of(node).value()) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    if (rank < 3) throw Error("X must have rank 3 or more");
    Shape y = x.shape;
    std::vector<float> scales(rank, 1.0f);
    if (call.has_input(3) && call.input(3).shape.elements() > 0) {
      const std::vector<int64_t> sizes = call.integers(3);
      for (size_t d = 0; d < rank; ++d) {
        y[d] = sizes.at(d);
        scales[d] = static_cast<float>(y[d]) / static_cast<float>(x.shape[d]);
      }
    } else {
      const Tensor& given = call.input(2);
      if (given.shape.elements() != static_cast<int64_t>(rank))
        throw Error("one scale for each axis is needed");
      const auto* p = static_cast<const float*>(given.data);
      for (size_t d = 0; d < rank; ++d) {
        scales[d] = p[d];
        y[d] = static_cast<int64_t>(std::floor(static_cast<float>(x.shape[d]) * p[d]));
      }
    }
    gpu::ResizeProblem p;
    for (size_t d = 0; d < rank; ++d) {
      if (y[d] < 0 || (x.shape[d] == 0 && y[d] > 0)) throw Error("Y cannot have the shape " + y.text());
    }
    for (size_t d = 0; d + 2 < rank; ++d) {
      if (y[d] != x.shape[d]) throw Error("only the last two axes can change");
      p.planes *= y[d];
    }
    const auto axis = [&](size_t d) {
      return gpu::ResizeAxis{gpu::to_i31(x.shape[d]), gpu::to_i31(y[d]), scales[d]};
    };
    p.rows = axis(rank - 2);
    p.columns = axis(rank - 1);
    p.coordinates = coordinates_;
    p.how = how_;
    const Ref out = set_output(call, 0, y);
    program.launch(gpu::resize_plan(p, is_half(x)), {Ref::input(0)}, {out});
  }

  gpu::Coordinates coordinates_;
  gpu::Interpolation how_;
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

class Cast final : public gpu::DeviceKernel {
 public:
  Cast(const Node& node, gpu::Device& device)
      : DeviceKernel(device), to_(static_cast<ElementType>(node.find_int("to").value_or(0))) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const Ref y = set_output(call, 0, x.shape, to_);
    program.launch(gpu::cast_plan(x.shape.elements(), x.type, to_), {Ref::input(0)}, {y});
  }

  ElementType to_;
};

std::string refuse_cast(const Node& node) {
  const auto known = [](ElementType type) { return bytes_of(type) > 0 && type != ElementType::kInt8; };
  const auto to = static_cast<ElementType>(node.find_int("to").value_or(0));
  return known(node.inputs.front().type) && known(to) ? "" : "a type not known";
}

std::string refuse_gather(const Node& node) {
  return bytes_of(node.inputs[0].type) >= 2 ? "" : "only elements of 2, 4 and 8 bytes";
}

std::string refuse_pad(const Node& node) {
  const auto& x = node.inputs.front().shape;
  if (!is_float(node.inputs.front().type)) return "only float and float16";
  if (!x || x->rank() > gpu::kMostAxes) return "rank above 5";
  return pad_mode(node) ? "" : "this mode is not known";
}

}  // namespace

void add_movement(Operators& operators) {
  // Kernels walk five axes; elements of 8 bytes take one of them.
  const auto small = [](const Value& v) {
    const size_t most = bytes_of(v.type) == 8 ? gpu::kMostAxes - 1 : gpu::kMostAxes;
    return !v.shape || v.shape->rank() > most ? "rank above " + std::to_string(most) : std::string();
  };
  const auto small_input = [small](const Node& node) { return small(node.inputs.front()); };
  const auto small_output = [small](const Node& node) { return small(node.outputs.front()); };
  operators.add<Transpose>("Transpose", 1, 25).refused(small_input);
  operators.add<Expand>("Expand", 8, 13).refused(small_output).reads_on_host({1});
  operators.add<Slice>("Slice", 10, 13).refused(small_input).reads_on_host({1, 2, 3, 4});
  operators.add<Concat>("Concat", 4, 13);
  operators.add<Split>("Split", 2, 18).reads_on_host({1});
  operators.add<Gather>("Gather", 1, 13).refused(refuse_gather);
  operators.add<Pad>("Pad", 11, 25).refused(refuse_pad).reads_on_host({1, 2, 3});
  operators.add<Resize>("Resize", 11, 19).refused(refuse_resize).reads_on_host({1, 2, 3});
  operators.add<Cast>("Cast", 6, 25).refused(refuse_cast);
}

}  // namespace graphopt::ep
