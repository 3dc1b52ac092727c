// Range, ConstantOfShape, Trilu and OneHot.
#include "operators/movement/generate/op.h"

#include <cmath>
#include <optional>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// The number of steps is computed in double, as in ONNX Runtime 1.32. Version 1.22 rounds limit - start to
// float32.
gpu::RangeProblem float_range(const Call& call) {
  gpu::RangeProblem p;
  p.start = call.number(0, 0.0f);
  p.step = call.number(2, 0.0f);
  const double distance = static_cast<double>(call.number(1, 0.0f)) - static_cast<double>(p.start);
  const double steps = std::ceil(distance / static_cast<double>(p.step));
  throw_if(p.step == 0 || !(steps <= INT32_MAX), "the step of the range is 0, or too small");
  p.total = steps > 0 ? static_cast<int64_t>(steps) : 0;
  return p;
}

// The number of steps is computed in uint64: double cannot represent all values of int64, and the distance
// between two values of int64 may exceed int64.
gpu::RangeProblem integer_range(const Call& call) {
  gpu::RangeProblem p;
  p.type = call.input(0).type;
  const int64_t start = call.integer(0, "start"), limit = call.integer(1, "limit"),
                step = call.integer(2, "delta");
  throw_if(step == 0, "the step of the range is 0");
  p.integer_start = start;
  p.integer_step = step;
  if (step > 0 ? start >= limit : start <= limit) return p;
  const auto bits = [](int64_t number) { return static_cast<uint64_t>(number); };
  const uint64_t distance = step > 0 ? bits(limit) - bits(start) : bits(start) - bits(limit);
  const uint64_t steps = (distance - 1) / (step > 0 ? bits(step) : 0 - bits(step)) + 1;
  throw_if(steps > INT32_MAX, "the range has too many elements");
  p.total = static_cast<int64_t>(steps);
  return p;
}

// Start, limit and step are inputs 0 to 2.
void plan_range(Call& call, Program& program) {
  const gpu::RangeProblem p =
      call.input(0).type == ElementType::kFloat ? float_range(call) : integer_range(call);
  const Ref y = set_output(call, 0, {p.total});
  program.launch(gpu::range_plan(p), {}, {y});
}

// The shape is input 0.
Planner plan_constant_of_shape(const Node& node) {
  const Number value = node.find_number("value").value_or(Number{ElementType::kFloat, 0});
  return [=](Call& call, Program& program) {
    const std::vector<int64_t> dims = call.integers(0);
    Shape shape(dims.size());
    int64_t total = 1;
    for (size_t d = 0; d < dims.size(); ++d) {
      throw_if(dims[d] < 0, "dimensions must not be negative, got ", dims[d]);
      shape[d] = dims[d];
      throw_if(__builtin_mul_overflow(total, dims[d], &total), "the shape has too many elements");
    }
    const Ref y = set_output(call, 0, shape, value.type);
    program.launch(gpu::fill_plan({total, bytes_of(value.type), value.bits}, call.aligned()), {}, {y});
  };
}

// The diagonal is input 1.
Planner plan_trilu(const Node& node) {
  const bool upper = node.get_bool("upper", true);
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    throw_if(rank < 2, "the data must have two axes or more");
    gpu::TriluProblem p;
    p.rows = x.shape[rank - 2];
    p.columns = x.shape[rank - 1];
    p.batch = x.shape.elements(0, rank - 2);
    p.upper = upper;
    p.bytes = bytes_of(x.type);
    if (call.has_input(1)) p.k = call.integer(1, "the diagonal");
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::trilu_plan(p, call.aligned()), {Ref::input(0)}, {y});
  };
}

std::optional<gpu::IndexType> index_type(ElementType type) {
  using T = ElementType;
  using I = gpu::IndexType;
  return find_choice<T, I>(type, {{T::kInt64, I::kInt64},
                                  {T::kInt32, I::kInt32},
                                  {T::kInt16, I::kInt16},
                                  {T::kInt8, I::kInt8},
                                  {T::kUint64, I::kUint64},
                                  {T::kUint32, I::kUint32},
                                  {T::kUint16, I::kUint16},
                                  {T::kUint8, I::kUint8},
                                  {T::kHalf, I::kHalf},
                                  {T::kFloat, I::kFloat}});
}

int64_t depth(const Call& call) {
  const Tensor& given = call.input(1);
  const double depth = is_float(given.type) ? static_cast<double>(call.number(1, 0.0f))
                                            : static_cast<double>(call.integer(1, "the depth"));
  throw_if(!(depth >= 0 && depth <= INT32_MAX), "the depth is out of range");
  return static_cast<int64_t>(depth);
}

// Input 1 is the depth, input 2 holds the off and the on value.
Planner plan_one_hot(const Node& node) {
  const int64_t given = node.get_int("axis", -1);
  return [=](Call& call, Program& program) {
    const Tensor &index = call.input(0), &values = call.input(2);
    throw_if(values.shape != Shape{2}, "values must have two elements: off and on");
    const size_t rank = index.shape.rank(), axis = axis_of(given, rank + 1);
    gpu::OneHotProblem p;
    p.depth = depth(call);
    p.type = index_type(index.type).value();
    p.bytes = bytes_of(values.type);
    Shape y(rank + 1);
    for (size_t d = 0; d < axis; ++d) p.outer *= y[d] = index.shape[d];
    y[axis] = p.depth;
    for (size_t d = axis; d < rank; ++d) p.inner *= y[d + 1] = index.shape[d];
    const Ref out = set_output(call, 0, y, values.type);
    program.launch(gpu::one_hot_plan(p, call.aligned()), {Ref::input(0), Ref::input(2)}, {out});
  };
}

std::string refuse_range(const Node& node) {
  const ElementType type = node.inputs[0].type;
  const bool known = type == ElementType::kFloat || type == ElementType::kInt16 ||
                     type == ElementType::kInt32 || type == ElementType::kInt64;
  return known ? "" : no_kernel(type);
}

std::string refuse_constant(const Node& node) {
  const ElementType type = node.outputs.empty() ? ElementType::kUndefined : node.outputs[0].type;
  const bool known = bytes_of(type) > 0 && type != ElementType::kFloat8E4M3Fn;
  return known ? "" : "no kernel for the type of the value";
}

std::string refuse_one_hot(const Node& node) {
  if (!index_type(node.inputs[0].type)) {
    return std::string("no kernel for indices of ") + element_type_name(node.inputs[0].type);
  }
  const ElementType depth = node.inputs[1].type;
  const bool known = is_float(depth) || is_integer(depth);
  return known ? "" : std::string("no kernel for a depth of ") + element_type_name(depth);
}

}  // namespace

void add_generate(Kernels& kernels) {
  kernels.add_onnx("Range", 11, 27, plan_range)
      .refused(refuse_range)
      .reads_on_host({0, 1, 2})
      .accepts_all_numbers();
  kernels.add_onnx("ConstantOfShape", 9, 28, plan_constant_of_shape)
      .refused(refuse_constant)
      .reads_on_host({0});
  kernels.add_onnx("Trilu", 14, 14, plan_trilu).reads_on_host({1}).accepts_all_numbers();
  kernels.add_onnx("OneHot", 9, 28, plan_one_hot)
      .refused(refuse_one_hot)
      .reads_on_host({1})
      .accepts_all_numbers();
}

}  // namespace graphopt
