// NonZero and Compress: the sizes of their outputs depend on the values of inputs.
#include "operators/movement/nonzero/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"
#include "operators/movement/gather/op.h"
#include "operators/movement/nonzero/args.h"

namespace graphopt {
namespace {

// Returns the shape of x. NonZero treats a scalar as a tensor with one axis of size 1.
Shape with_axes(const Shape& x) { return x.rank() == 0 ? Shape{1} : x; }

gpu::NonzeroType nonzero_type(ElementType type) {
  const bool has_negative_zero =
      is_float(type) || type == ElementType::kDouble || type == ElementType::kBfloat16;
  return {bytes_of(type), has_negative_zero};
}

// Counts the nonzero elements among the first `count` elements of input `which`.
void plan_count(Call& call, Program& program, size_t which, int64_t count) {
  const Ref all = set_output(call, 0, Shape{1}, ElementType::kInt64),
            starts = set_output(call, 1, Shape{gpu::nonzero_parts(count)}, ElementType::kInt32);
  program.launch(gpu::nonzero_count_plan(count, nonzero_type(call.input(which).type)), {Ref::input(which)},
                 {all, starts});
}

// The counter kernel appends inputs 1 and 2: the number of nonzero elements of x, and for each part of x the number of
// nonzero elements before it.
CountedPlanner plan_nonzero(const Node&) {
  const auto count = [](Call& call, Program& program) {
    plan_count(call, program, 0, call.input(0).shape.elements());
  };
  const auto plan = [](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const Shape shape = with_axes(x.shape);
    const int64_t all = call.integers(1).at(0);
    const Ref y = set_output(call, 0, Shape{static_cast<int64_t>(shape.rank()), all}, ElementType::kInt64);
    program.launch(gpu::nonzero_indices_plan(shape, nonzero_type(x.type), all),
                   {Ref::input(0), Ref::input(2)}, {y});
  };
  return {count, plan};
}

constexpr int64_t kFlat = INT64_MIN;  // no axis: the data is flattened

// Returns the number of conditions to read. There may be fewer conditions than elements along the axis. Conditions
// beyond the end of the axis are ignored.
int64_t conditions(const Call& call, int64_t axis) {
  const Shape& x = call.input(0).shape;
  const int64_t size = axis == kFlat ? x.elements() : x[axis_of(axis, x.rank())];
  return std::min(size, call.input(1).shape.elements());
}

// The counter kernel appends inputs 2 and 3: the number of true conditions, and for each part of the conditions the
// number of true ones before it.
CountedPlanner plan_compress(const Node& node) {
  const int64_t given = node.get_int("axis", kFlat);
  const auto count = [=](Call& call, Program& program) {
    plan_count(call, program, 1, conditions(call, given));
  };
  const auto plan = [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const int64_t all = call.integers(2).at(0);
    const Shape from = given == kFlat ? Shape{x.shape.elements()} : x.shape;
    const size_t axis = given == kFlat ? 0 : axis_of(given, from.rank());
    Shape shape = from;
    shape[axis] = all;
    const Ref y = set_output(call, 0, shape);
    gpu::GatherProblem p;
    std::tie(p.outer, p.size, p.inner) = split_at(from, axis);
    p.indices = all;
    p.bytes = bytes_of(x.type);
    const Ref places = program.reserve(all * 8);
    program.launch(
        gpu::nonzero_indices_plan(Shape{conditions(call, given)}, nonzero_type(ElementType::kBool), all),
        {Ref::input(1), Ref::input(3)}, {places});
    program.launch(gpu::gather_plan(p, call.aligned()), {Ref::input(0), places}, {y});
  };
  return {count, plan};
}

std::string refuse_compress(const Node& node) {
  return node.inputs[1].type == ElementType::kBool ? "" : "the conditions are not bool";
}

std::string refuse_nonzero(const Node& node) {
  const auto& x = node.inputs[0].shape;
  return x && x->rank() > hip::kNonzeroMaxAxes ? "the rank is above 8" : "";
}

}  // namespace

void add_nonzero(Kernels& kernels) {
  kernels.add_onnx("NonZero", 9, 28, plan_nonzero)
      .refused(refuse_nonzero)
      .accepts_all_numbers()
      .with_counter();
  kernels.add_onnx("Compress", 9, 28, plan_compress)
      .refused(refuse_compress)
      .accepts_all_numbers()
      .with_counter();
}

}  // namespace graphopt
