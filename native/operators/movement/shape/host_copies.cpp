// Operators on shape values that move or repeat elements.
#include <algorithm>
#include <cstring>

#include "blocks/gpu/walk_plan.h"
#include "operators/movement/gather/op.h"
#include "operators/movement/movement/op.h"
#include "operators/movement/shape/arithmetic.h"
#include "operators/movement/shape/views.h"

namespace graphopt {
namespace {

// Copies elements of any type from a strided x to a contiguous y.
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
HostFunction view(const Node& node) {
  return [shape = Of(node)](const Call& call) -> HostValue {
    const Tensor& x = call.input(0);
    const auto write = [&x](const Tensor& y) {
      if (x.bytes() > 0) std::memcpy(y.data, x.data, x.bytes());
    };
    return {shape.of(call), x.type, write};
  };
}

// A copy of input 0.
HostValue copied(const Call& call, const gpu::StridedCopy& copy, const Shape& shape) {
  const Tensor& x = call.input(0);
  return {shape, x.type, [&x, copy](const Tensor& y) { copy_elements(x, copy, y); }};
}

// The copy of input 0 that kCopy describes.
template <gpu::StridedCopy (*kCopy)(const Call&)>
HostValue moved(const Call& call) {
  const gpu::StridedCopy copy = kCopy(call);
  return copied(call, copy, copy.shape);
}

// Tile as a strided copy: each axis of X becomes two axes, and the first one repeats the second.
HostValue tile(const Call& call) {
  const Shape& x = call.input(0).shape;
  const std::vector<int64_t> repeats = call.integers(1), strides = gpu::contiguous(x);
  throw_if(repeats.size() != x.rank(), "there must be one repeat for each axis");
  Shape y = x;
  gpu::StridedCopy copy;
  copy.shape = Shape(2 * x.rank());
  for (size_t d = 0; d < x.rank(); ++d) {
    throw_if(repeats[d] < 0, "repeats must not be negative, got ", repeats[d]);
    y[d] *= repeats[d];
    copy.shape[2 * d] = repeats[d];
    copy.shape[2 * d + 1] = x[d];
    copy.x_strides.insert(copy.x_strides.end(), {0, strides[d]});
  }
  return copied(call, copy, y);
}

std::string refuse_tile(const Node& node) {
  const auto& x = node.inputs[0].shape;
  return x && 2 * x->rank() > Shape::kMaxRank ? "the rank is above " + std::to_string(Shape::kMaxRank / 2)
                                              : refuse_unless_arithmetic(node);
}

HostFunction transpose(const Node& node) {
  return [perm = node.get_ints("perm", {})](const Call& call) {
    const gpu::StridedCopy copy = transposed(call, perm);
    return copied(call, copy, copy.shape);
  };
}

HostFunction concat(const Node& node) {
  return [given = node.get_int("axis")](const Call& call) -> HostValue {
    const size_t axis = axis_of(given, call.input(0).shape.rank());
    const auto write = [&call, axis](const Tensor& y) {
      auto* to = y.as<char>();
      for (int64_t o = 0; o < call.inputs[0].shape.elements(0, axis); ++o) {
        for (const Tensor& x : call.inputs) {
          const auto bytes = static_cast<size_t>(x.shape.elements(axis) * bytes_of(x.type));
          if (bytes > 0) std::memcpy(to, x.as<const char>() + static_cast<size_t>(o) * bytes, bytes);
          to += bytes;
        }
      }
    };
    return {concatenated(call, 0, 1, axis), call.input(0).type, write};
  };
}

HostFunction gather(const Node& node) {
  return [given_axis = node.get_int("axis", 0)](const Call& call) -> HostValue {
    const Tensor &x = call.input(0), &index = call.input(1);
    const size_t axis = axis_of(given_axis, x.shape.rank());
    const auto write = [&call, &x, axis](const Tensor& y) {
      const int64_t size = x.shape[axis], inner = x.shape.elements(axis + 1) * bytes_of(x.type);
      const std::vector<int64_t> indices = call.integers(1);
      auto* to = y.as<char>();
      for (int64_t o = 0; o < x.shape.elements(0, axis); ++o) {
        for (const int64_t given : indices) {
          const int64_t i = given < 0 ? given + size : given;
          throw_if(i < 0 || i >= size, "the index ", given, " is out of range of ", size);
          if (inner > 0) {
            std::memcpy(to, x.as<const char>() + (o * size + i) * inner, static_cast<size_t>(inner));
          }
          to += inner;
        }
      }
    };
    return {gathered(x.shape, index.shape, axis), x.type, write};
  };
}

// The shape is input 0.
HostFunction constant_of_shape(const Node& node) {
  const Number value = node.find_number("value").value_or(Number{ElementType::kFloat, 0});
  return [value](const Call& call) -> HostValue {
    const std::vector<int64_t> dims = call.integers(0);
    Shape shape(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) {
      throw_if(dims[d] < 0, "dimensions must not be negative, got ", dims[d]);
      shape[d] = dims[d];
    }
    const auto write = [value](const Tensor& y) {
      const auto bytes = static_cast<size_t>(bytes_of(y.type));
      auto* to = y.as<char>();
      for (int64_t i = 0; i < y.shape.elements(); ++i, to += bytes) std::memcpy(to, &value.bits, bytes);
    };
    return {shape, value.type, write};
  };
}

}  // namespace

void add_host_copies(Kernels& kernels) {
  const auto add = [&](const char* name, int first, const auto& function) -> Registration& {
    return add_host(kernels, name, first, function).refused(refuse_unless_arithmetic);
  };
  add("Identity", 1, view<IdentityShape>);
  add("Reshape", 5, view<ReshapeShape>);
  add("Flatten", 1, view<FlattenShape>);
  add("Squeeze", 1, view<SqueezeShape>);
  add("Unsqueeze", 1, view<UnsqueezeShape>);
  add("Slice", 10, moved<sliced>);
  add("Expand", 8, moved<expanded>);
  add("Tile", 6, tile).refused(refuse_tile);
  add("Transpose", 1, transpose);
  add("Concat", 4, concat);
  add("Gather", 1, gather);
  add("ConstantOfShape", 9, constant_of_shape);
}

}  // namespace graphopt
