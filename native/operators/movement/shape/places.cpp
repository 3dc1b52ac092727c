// What brings numbers that shapes are made of to other places, or makes more of them.
#include <algorithm>
#include <cstring>

#include "blocks/gpu/walk_plan.h"
#include "operators/movement/movement/op.h"
#include "operators/movement/shape/arithmetic.h"
#include "operators/movement/shape/views.h"

namespace graphopt {
namespace {

// Elements of any type, from strides of x to the order of y.
void copy_elements(const Tensor& x, const gpu::StridedCopy& copy, const Tensor& y) {
  const auto bytes = static_cast<size_t>(bytes_of(x.type));
  const auto* from = x.as<const char>();
  auto* to = y.as<char>();
  walk(copy.shape, {copy.x_strides}, {copy.x_offset}, [&](const std::vector<int64_t>& at) {
    std::memcpy(to, from + at[0] * static_cast<int64_t>(bytes), bytes);
    to += bytes;
  });
}

template <class Of>
class HostView final : public Kernel {
 public:
  explicit HostView(const Node& node) : shape_(node) {}

  void plan(Call& call) const override { set_host_output(call, shape_.of(call), call.input(0).type); }

  bool run(Call& call) const override {
    const Tensor& x = call.inputs[0];
    if (x.bytes() > 0) std::memcpy(call.outputs[0].data, x.data, x.bytes());
    return true;
  }

 private:
  Of shape_;
};

// What a function of the call makes of input 0.
template <gpu::StridedCopy (*kCopy)(const Call&)>
class Moved final : public Kernel {
 public:
  explicit Moved(const Node&) {}
  void plan(Call& call) const override { set_host_output(call, kCopy(call).shape, call.input(0).type); }
  bool run(Call& call) const override {
    copy_elements(call.inputs[0], kCopy(call), call.outputs[0]);
    return true;
  }
};

// Axes of X are written as two, the repeats first.
class Tile final : public Kernel {
 public:
  explicit Tile(const Node&) {}

  void plan(Call& call) const override {
    const std::vector<int64_t> repeats = call.integers(1);
    Shape y = call.input(0).shape;
    if (repeats.size() != y.rank()) throw Error("there must be one repeat for each axis");
    for (size_t d = 0; d < y.rank(); ++d) {
      if (repeats[d] < 0) throw Error("a repeat of " + std::to_string(repeats[d]));
      y[d] *= repeats[d];
    }
    set_host_output(call, y, call.input(0).type);
  }

  bool run(Call& call) const override {
    const Tensor& x = call.inputs[0];
    const std::vector<int64_t> repeats = call.integers(1), strides = gpu::contiguous(x.shape);
    gpu::StridedCopy copy;
    copy.shape = Shape(2 * x.shape.rank());
    for (size_t d = 0; d < x.shape.rank(); ++d) {
      copy.shape[2 * d] = repeats[d];
      copy.shape[2 * d + 1] = x.shape[d];
      copy.x_strides.insert(copy.x_strides.end(), {0, strides[d]});
    }
    copy_elements(x, copy, call.outputs[0]);
    return true;
  }
};

std::string refuse_tile(const Node& node) {
  const auto& x = node.inputs[0].shape;
  return x && 2 * x->rank() > Shape::kMaxRank ? "too many axes" : refuse_unless_arithmetic(node);
}

class Transpose final : public Kernel {
 public:
  explicit Transpose(const Node& node) : perm_(node.find_ints("perm").value_or(std::vector<int64_t>())) {}

  void plan(Call& call) const override {
    set_host_output(call, transposed(call, perm_).shape, call.input(0).type);
  }
  bool run(Call& call) const override {
    copy_elements(call.inputs[0], transposed(call, perm_), call.outputs[0]);
    return true;
  }

 private:
  std::vector<int64_t> perm_;
};

class Concat final : public Kernel {
 public:
  explicit Concat(const Node& node) : axis_(node.get_int("axis")) {}

  void plan(Call& call) const override {
    set_host_output(call, joined(call, 0, 1, axis(call)), call.input(0).type);
  }

  bool run(Call& call) const override {
    auto* to = call.outputs[0].as<char>();
    const size_t axis = this->axis(call);
    for (int64_t o = 0; o < call.inputs[0].shape.elements(0, axis); ++o) {
      for (const Tensor& x : call.inputs) {
        const auto bytes = static_cast<size_t>(x.shape.elements(axis) * bytes_of(x.type));
        if (bytes > 0) std::memcpy(to, x.as<const char>() + static_cast<size_t>(o) * bytes, bytes);
        to += bytes;
      }
    }
    return true;
  }

 private:
  size_t axis(const Call& call) const { return axis_of(axis_, call.input(0).shape.rank()); }
  int64_t axis_;
};

class Gather final : public Kernel {
 public:
  explicit Gather(const Node& node) : axis_(node.find_int("axis").value_or(0)) {}

  void plan(Call& call) const override {
    const Shape &x = call.input(0).shape, &index = call.input(1).shape;
    const size_t axis = axis_of(axis_, x.rank());
    Shape y(x.rank() - 1 + index.rank());
    std::copy(x.data(), x.data() + axis, y.data());
    std::copy(index.data(), index.data() + index.rank(), y.data() + axis);
    std::copy(x.data() + axis + 1, x.data() + x.rank(), y.data() + axis + index.rank());
    set_host_output(call, y, call.input(0).type);
  }

  bool run(Call& call) const override {
    const Tensor& x = call.inputs[0];
    const size_t axis = axis_of(axis_, x.shape.rank());
    const int64_t size = x.shape[axis], inner = x.shape.elements(axis + 1) * bytes_of(x.type);
    const std::vector<int64_t> indices = call.integers(1);
    auto* to = call.outputs[0].as<char>();
    for (int64_t o = 0; o < x.shape.elements(0, axis); ++o) {
      for (const int64_t given : indices) {
        const int64_t i = given < 0 ? given + size : given;
        if (i < 0 || i >= size) {
          throw Error("the index " + std::to_string(given) + " is out of range of " + std::to_string(size));
        }
        if (inner > 0)
          std::memcpy(to, x.as<const char>() + (o * size + i) * inner, static_cast<size_t>(inner));
        to += inner;
      }
    }
    return true;
  }

 private:
  int64_t axis_;
};

// The shape is input 0.
class ConstantOfShape final : public Kernel {
 public:
  explicit ConstantOfShape(const Node& node)
      : value_(node.find_number("value").value_or(Number{ElementType::kFloat, 0})) {}

  void plan(Call& call) const override {
    const std::vector<int64_t> dims = call.integers(0);
    for (const int64_t dim : dims) {
      if (dim < 0) throw Error("a dimension of " + std::to_string(dim));
    }
    Shape y(dims.size());
    std::copy(dims.begin(), dims.end(), y.data());
    set_host_output(call, y, value_.type);
  }

  bool run(Call& call) const override {
    const Tensor& y = call.outputs[0];
    const auto bytes = static_cast<size_t>(bytes_of(y.type));
    auto* to = y.as<char>();
    for (int64_t i = 0; i < y.shape.elements(); ++i, to += bytes) std::memcpy(to, &value_.bits, bytes);
    return true;
  }

 private:
  Number value_;
};

}  // namespace

void add_arithmetic_of_places(Kernels& kernels) {
  kernels.add_arithmetic<HostView<IdentityShape>>("Identity", 1, kNewestArithmetic)
      .refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<HostView<ReshapeShape>>("Reshape", 5, kNewestArithmetic)
      .refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<HostView<FlattenShape>>("Flatten", 1, kNewestArithmetic)
      .refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<HostView<SqueezeShape>>("Squeeze", 1, kNewestArithmetic)
      .refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<HostView<UnsqueezeShape>>("Unsqueeze", 1, kNewestArithmetic)
      .refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<Moved<sliced>>("Slice", 10, kNewestArithmetic).refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<Moved<expanded>>("Expand", 8, kNewestArithmetic).refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<Tile>("Tile", 6, kNewestArithmetic).refused(refuse_tile);
  kernels.add_arithmetic<Transpose>("Transpose", 1, kNewestArithmetic).refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<Concat>("Concat", 4, kNewestArithmetic).refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<Gather>("Gather", 1, kNewestArithmetic).refused(refuse_unless_arithmetic);
  kernels.add_arithmetic<ConstantOfShape>("ConstantOfShape", 9, kNewestArithmetic)
      .refused(refuse_unless_arithmetic);
}

}  // namespace graphopt
