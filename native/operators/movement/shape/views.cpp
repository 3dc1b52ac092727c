#include "operators/movement/shape/views.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

Shape checked(const Shape& y, const Shape& x) {
  for (size_t d = 0; d < y.rank(); ++d) throw_if(y[d] < 0, "the shape ", y, " has a negative dim");
  throw_if(y.elements() != x.elements(), "the shape ", y, " does not have as many elements as ", x);
  return y;
}

std::vector<int64_t> axes_of(const Call& call, const std::optional<std::vector<int64_t>>& attribute) {
  return call.has_input(1) ? call.integers(1) : attribute.value_or(std::vector<int64_t>());
}

std::vector<bool> marked(const std::vector<int64_t>& axes, size_t rank) {
  std::vector<bool> marks(rank, false);
  for (const int64_t axis : axes) marks[axis_of(axis, rank)] = true;
  return marks;
}

}  // namespace

Shape ReshapeShape::of(const Call& call) const {
  const Shape& x = call.input(0).shape;
  const std::vector<int64_t> wanted = call.integers(1);
  Shape y(wanted.size());
  int64_t known = 1;
  size_t inferred = wanted.size();
  for (size_t d = 0; d < wanted.size(); ++d) {
    y[d] = wanted[d];
    if (wanted[d] == 0 && !allow_zero_) {
      throw_if(d >= x.rank(), "a dim of 0 in the shape has no counterpart in ", x);
      y[d] = x[d];
    }
    if (wanted[d] == -1) {
      inferred = d;
    } else {
      known *= y[d];
    }
  }
  if (inferred < wanted.size()) {
    throw_if(known == 0 || x.elements() % known != 0, "no size for -1 preserves the number of elements of ",
             x);
    y[inferred] = x.elements() / known;
  }
  return checked(y, x);
}

Shape FlattenShape::of(const Call& call) const {
  const Shape& x = call.input(0).shape;
  // `axis` may equal the rank: all axes are then flattened into the first.
  const auto rank = static_cast<int64_t>(x.rank());
  const size_t axis = axis_ == rank ? x.rank() : axis_of(axis_, x.rank());
  return {x.elements(0, axis), x.elements(axis)};
}

Shape UnsqueezeShape::of(const Call& call) const {
  const Shape& x = call.input(0).shape;
  const std::vector<int64_t> added = axes_of(call, axes_);
  const std::vector<bool> is_new = marked(added, x.rank() + added.size());
  Shape y(is_new.size());
  size_t from = 0;
  for (size_t d = 0; d < is_new.size(); ++d) {
    throw_if(!is_new[d] && from == x.rank(), "an axis is added twice");
    y[d] = is_new[d] ? 1 : x[from++];
  }
  return y;
}

Shape SqueezeShape::of(const Call& call) const {
  const Shape& x = call.input(0).shape;
  const std::vector<int64_t> given = axes_of(call, axes_);
  std::vector<bool> dropped = marked(given, x.rank());
  size_t rank = 0;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (given.empty()) dropped[d] = x[d] == 1;
    if (!dropped[d]) ++rank;
  }
  Shape y(rank);
  size_t to = 0;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (!dropped[d]) y[to++] = x[d];
  }
  return checked(y, x);
}

}  // namespace graphopt
