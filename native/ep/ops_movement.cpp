// Operators that move elements: Transpose, Slice, Concat, Split, Expand, Gather, Pad, Resize, and Cast.
#include <algorithm>
#include <cmath>
#include <limits>

#include "abi/error.h"
#include "ep/operators.h"
#include "gpu/gather_plan.h"
#include "gpu/pool_plan.h"
#include "gpu/strided_copy_plan.h"
#include "ops/half.h"

namespace graphopt::ep {
namespace {

using abi::GraphNode;
using gpu::StridedCopy;

void strided_copy(Execution& e, const StridedCopy& copy, const void* x, void* y) {
  e.run(gpu::strided_copy_plan(copy, aligned({x, y})), {x}, {y});
}

class Transpose final : public OpKernel {
 public:
  explicit Transpose(std::vector<int64_t> perm) : perm_(std::move(perm)) {}

  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
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
    strided_copy(e, copy, x.data, e.output(0, copy.shape));
  }

 private:
  std::vector<int64_t> perm_;
};

class Expand final : public OpKernel {
 public:
  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
    const std::vector<int64_t> dims = e.integers(1);
    Shape wanted(dims.size());
    std::copy(dims.begin(), dims.end(), wanted.data());
    StridedCopy copy;
    copy.shape = gpu::broadcast_shape(x.shape, wanted);
    copy.bytes = bytes_of(x.type);
    copy.x_strides = gpu::broadcast(x.shape, copy.shape);
    copy.y_strides = gpu::contiguous(copy.shape);
    strided_copy(e, copy, x.data, e.output(0, copy.shape));
  }
};

// Starts, ends, axes and steps are inputs 1 to 4.
class Slice final : public OpKernel {
 public:
  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
    const size_t rank = x.shape.rank();
    const std::vector<int64_t> starts = e.integers(1), ends = e.integers(2);
    std::vector<int64_t> axes(starts.size()), steps(starts.size(), 1);
    for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
    if (e.has_input(3)) axes = e.integers(3);
    if (e.has_input(4)) steps = e.integers(4);
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
    strided_copy(e, copy, x.data, e.output(0, copy.shape));
  }
};

class Concat final : public OpKernel {
 public:
  explicit Concat(int64_t axis) : axis_(axis) {}

  void run(Execution& e) const override {
    Shape y = e.input(0).shape;
    const size_t axis = axis_of(axis_, y.rank());
    y[axis] = 0;
    for (size_t i = 0; i < e.input_count(); ++i) {
      Shape x = e.input(i).shape;
      if (x.rank() != y.rank()) throw Error("inputs of different ranks");
      y[axis] += x[axis];
      x[axis] = y[axis];
      if (!(x == y)) throw Error("inputs differ in another axis than the one that is joined");
    }
    void* out = e.output(0, y);
    const std::vector<int64_t> strides = gpu::contiguous(y);
    int64_t at = 0;
    for (size_t i = 0; i < e.input_count(); ++i) {
      const Tensor& x = e.input(i);
      StridedCopy copy;
      copy.shape = x.shape;
      copy.bytes = bytes_of(x.type);
      copy.x_strides = gpu::contiguous(x.shape);
      copy.y_strides = strides;
      copy.y_offset = at * strides[axis];
      strided_copy(e, copy, x.data, out);
      at += x.shape[axis];
    }
  }

 private:
  int64_t axis_;
};

// The sizes are input 1, an attribute below opset 13, or equal.
class Split final : public OpKernel {
 public:
  Split(int64_t axis, std::vector<int64_t> sizes) : axis_(axis), sizes_(std::move(sizes)) {}

  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
    const size_t axis = axis_of(axis_, x.shape.rank()), outputs = e.output_count();
    std::vector<int64_t> sizes = e.has_input(1) ? e.integers(1) : sizes_;
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
      void* y = e.output(i, copy.shape);
      if (y != nullptr) strided_copy(e, copy, x.data, y);
      at += sizes[i];
    }
  }

 private:
  int64_t axis_;
  std::vector<int64_t> sizes_;
};

class Gather final : public OpKernel {
 public:
  explicit Gather(int64_t axis) : axis_(axis) {}

  void run(Execution& e) const override {
    const Tensor &x = e.input(0), &index = e.input(1);
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
    void* out = e.output(0, y);
    e.run(gpu::gather_plan(p, aligned({x.data, out})), {x.data, index.data}, {out});
  }

 private:
  int64_t axis_;
};

// Pads, value and axes are inputs 1 to 3.
class Pad final : public OpKernel {
 public:
  explicit Pad(gpu::PadMode mode) : mode_(mode) {}

  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
    const size_t rank = x.shape.rank();
    const std::vector<int64_t> pads = e.integers(1);
    gpu::PadProblem p;
    p.x = x.shape;
    p.before.assign(rank, 0);
    p.after.assign(rank, 0);
    std::vector<int64_t> axes(pads.size() / 2);
    for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
    if (e.has_input(3)) axes = e.integers(3);
    if (pads.size() != 2 * axes.size()) throw Error("two pads for each axis are needed");
    for (size_t i = 0; i < axes.size(); ++i) {
      p.before[axis_of(axes[i], rank)] = pads[i];
      p.after[axis_of(axes[i], rank)] = pads[axes.size() + i];
    }
    p.mode = mode_;
    p.bytes = bytes_of(x.type);
    const float value = e.number(2, 0.0f);
    if (x.type == ElementType::kHalf) {
      const half h = value;
      std::memcpy(&p.value, &h, sizeof h);
    } else {
      std::memcpy(&p.value, &value, sizeof value);
    }
    void* y = e.output(0, p.y());
    e.run(gpu::pad_plan(p), {x.data}, {y});
  }

 private:
  gpu::PadMode mode_;
};

// Scales and sizes are inputs 2 and 3; all axes but the last two stay.
class Resize final : public OpKernel {
 public:
  Resize(gpu::Coordinates coordinates, gpu::Interpolation how) : coordinates_(coordinates), how_(how) {}

  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
    const size_t rank = x.shape.rank();
    if (rank < 3) throw Error("X must have rank 3 or more");
    Shape y = x.shape;
    std::vector<float> scales(rank, 1.0f);
    if (e.has_input(3) && e.input(3).shape.elements() > 0) {
      const std::vector<int64_t> sizes = e.integers(3);
      for (size_t d = 0; d < rank; ++d) {
        y[d] = sizes.at(d);
        scales[d] = static_cast<float>(y[d]) / static_cast<float>(x.shape[d]);
      }
    } else {
      const Tensor& given = e.input(2);
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
    void* out = e.output(0, y);
    e.run(gpu::resize_plan(p, x.type == ElementType::kHalf), {x.data}, {out});
  }

 private:
  gpu::Coordinates coordinates_;
  gpu::Interpolation how_;
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

// Resizing of the first two of four axes, or with a window or an antialiasing filter, is left to others.
std::string refuse_resize(const GraphNode& node) {
  if (!is_float(node.inputs().front().type)) return "only float and float16";
  if (!coordinates_of(node) || !interpolation_of(node)) return "this mode is not known";
  if (node.find_int("antialias").value_or(0) != 0 || node.find_ints("axes") ||
      node.find_int("exclude_outside").value_or(0) != 0 ||
      node.find_string("keep_aspect_ratio_policy").value_or("stretch") != "stretch") {
    return "antialias, axes, exclude_outside and keep_aspect_ratio_policy are not known";
  }
  const auto& x = node.inputs().front().shape;
  const auto& y = node.outputs().front().shape;
  if (!x || !y || x->rank() < 3 || x->rank() != y->rank()) return "ranks of 3 and more only";
  for (size_t d = 0; d + 2 < x->rank(); ++d) {
    if ((*x)[d] < 0 || (*y)[d] < 0) continue;
    if ((*x)[d] != (*y)[d]) return "only the last two axes may change";
  }
  return "";
}

class Cast final : public OpKernel {
 public:
  explicit Cast(ElementType to) : to_(to) {}

  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
    void* y = e.output(0, x.shape, to_);
    e.run(gpu::cast_plan(x.shape.elements(), x.type, to_), {x.data}, {y});
  }

 private:
  ElementType to_;
};

std::string refuse_cast(const GraphNode& node) {
  const auto known = [](ElementType type) { return bytes_of(type) > 0 && type != ElementType::kInt8; };
  const auto to = static_cast<ElementType>(node.find_int("to").value_or(0));
  return known(node.inputs().front().type) && known(to) ? "" : "a type not known";
}

std::string refuse_gather(const GraphNode& node) {
  return bytes_of(node.inputs()[0].type) >= 2 ? "" : "only elements of 2, 4 and 8 bytes";
}

std::optional<gpu::PadMode> pad_mode(const Attributes& a) {
  const std::string mode = a.find_string("mode").value_or("constant");
  if (mode == "constant") return gpu::PadMode::kConstant;
  if (mode == "reflect") return gpu::PadMode::kReflect;
  if (mode == "edge") return gpu::PadMode::kEdge;
  return std::nullopt;
}

std::string refuse_pad(const GraphNode& node) {
  const auto& x = node.inputs().front().shape;
  if (!is_float(node.inputs().front().type)) return "only float and float16";
  if (!x || x->rank() > gpu::kMostAxes) return "rank above 5";
  return pad_mode(node) ? "" : "this mode is not known";
}

}  // namespace

void add_movement(std::vector<Operator>& table) {
  // Kernels walk five axes; elements of 8 bytes take one of them.
  const auto small = [](const abi::Edge& e) {
    const size_t most = bytes_of(e.type) == 8 ? gpu::kMostAxes - 1 : gpu::kMostAxes;
    return !e.shape || e.shape->rank() > most ? "rank above " + std::to_string(most) : std::string();
  };
  const auto small_input = [small](const GraphNode& node) { return small(node.inputs().front()); };
  const auto small_output = [small](const GraphNode& node) { return small(node.outputs().front()); };
  add(table, "Transpose", 1, 25, [](const Attributes& a) {
    return std::make_unique<Transpose>(a.find_ints("perm").value_or(std::vector<int64_t>()));
  }).refused(small_input);
  add(table, "Expand", 8, 13, [](const Attributes&) { return std::make_unique<Expand>(); })
      .refused(small_output)
      .reads_on_host({1});
  add(table, "Slice", 10, 13, [](const Attributes&) { return std::make_unique<Slice>(); })
      .refused(small_input)
      .reads_on_host({1, 2, 3, 4});
  add(table, "Concat", 4, 13,
      [](const Attributes& a) { return std::make_unique<Concat>(a.find_int("axis").value_or(0)); });
  add(table, "Split", 2, 18, [](const Attributes& a) {
    return std::make_unique<Split>(a.find_int("axis").value_or(0),
                                   a.find_ints("split").value_or(std::vector<int64_t>()));
  }).reads_on_host({1});
  add(table, "Gather", 1, 13, [](const Attributes& a) {
    return std::make_unique<Gather>(a.find_int("axis").value_or(0));
  }).refused(refuse_gather);
  add(table, "Pad", 11, 25, [](const Attributes& a) { return std::make_unique<Pad>(*pad_mode(a)); })
      .refused(refuse_pad)
      .reads_on_host({1, 2, 3});
  add(table, "Resize", 11, 19,
      [](const Attributes& a) { return std::make_unique<Resize>(*coordinates_of(a), *interpolation_of(a)); })
      .refused(refuse_resize)
      .reads_on_host({1, 2, 3});
  add(table, "Cast", 6, 25, [](const Attributes& a) {
    return std::make_unique<Cast>(static_cast<ElementType>(a.find_int("to").value_or(0)));
  }).refused(refuse_cast);
}

}  // namespace graphopt::ep
