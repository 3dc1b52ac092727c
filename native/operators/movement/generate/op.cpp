// Range, ConstantOfShape, Trilu and OneHot.
#include "operators/movement/generate/op.h"

#include <cmath>
#include <optional>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// Start, limit and step are inputs 0 to 2.
class Range final : public gpu::DeviceKernel {
 public:
  Range(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const gpu::RangeProblem p = call.input(0).type == ElementType::kFloat ? of_floats(call) : of_whole(call);
    const Ref y = set_output(call, 0, {p.total});
    program.launch(gpu::range_plan(p), {}, {y});
  }

  // The steps are counted in double, as the newest runtimes count them.
  static gpu::RangeProblem of_floats(const Call& call) {
    gpu::RangeProblem p;
    p.start = call.number(0, 0.0f);
    p.step = call.number(2, 0.0f);
    const double distance = static_cast<double>(call.number(1, 0.0f)) - static_cast<double>(p.start);
    const double steps = std::ceil(distance / static_cast<double>(p.step));
    if (p.step == 0 || !(steps <= INT32_MAX)) throw Error("a range without end");
    p.total = steps > 0 ? static_cast<int64_t>(steps) : 0;
    return p;
  }

  // No double holds all of int64, and neither does int64 all distances between two of its numbers.
  static gpu::RangeProblem of_whole(const Call& call) {
    gpu::RangeProblem p;
    p.type = call.input(0).type;
    const int64_t start = whole(call, 0), limit = whole(call, 1), step = whole(call, 2);
    if (step == 0) throw Error("a range without end");
    p.whole_start = start;
    p.whole_step = step;
    if (step > 0 ? start >= limit : start <= limit) return p;
    const auto bits = [](int64_t number) { return static_cast<uint64_t>(number); };
    const uint64_t distance = step > 0 ? bits(limit) - bits(start) : bits(start) - bits(limit);
    const uint64_t steps = (distance - 1) / (step > 0 ? bits(step) : 0 - bits(step)) + 1;
    if (steps > INT32_MAX) throw Error("a range without end");
    p.total = static_cast<int64_t>(steps);
    return p;
  }

  static int64_t whole(const Call& call, size_t i) {
    const std::vector<int64_t> given = call.integers(i);
    if (given.size() != 1) throw Error("input " + std::to_string(i) + " must hold one number");
    return given[0];
  }
};

// The shape is input 0.
class ConstantOfShape final : public gpu::DeviceKernel {
 public:
  ConstantOfShape(const Node& node, gpu::Device& device)
      : DeviceKernel(device), value_(node.find_number("value").value_or(Number{ElementType::kFloat, 0})) {}

 private:
  void plan(Call& call, Program& program) const override {
    const std::vector<int64_t> dims = call.integers(0);
    Shape shape(dims.size());
    int64_t total = 1;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] < 0) throw Error("a dimension of " + std::to_string(dims[d]));
      shape[d] = dims[d];
      if (__builtin_mul_overflow(total, dims[d], &total)) throw Error("more elements than can be counted");
    }
    const Ref y = set_output(call, 0, shape, value_.type);
    program.launch(gpu::fill_plan({total, bytes_of(value_.type), value_.bits}, call.aligned()), {}, {y});
  }

  Number value_;
};

// The diagonal is input 1.
class Trilu final : public gpu::DeviceKernel {
 public:
  Trilu(const Node& node, gpu::Device& device)
      : DeviceKernel(device), upper_(node.find_int("upper").value_or(1) != 0) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    if (rank < 2) throw Error("the data must have two axes or more");
    gpu::TriluProblem p;
    p.rows = x.shape[rank - 2];
    p.columns = x.shape[rank - 1];
    p.batch = x.shape.elements(0, rank - 2);
    p.upper = upper_;
    p.bytes = bytes_of(x.type);
    if (call.has_input(1)) {
      const std::vector<int64_t> k = call.integers(1);
      if (k.size() != 1) throw Error("the diagonal must be one number");
      p.k = k[0];
    }
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::trilu_plan(p, call.aligned()), {Ref::input(0)}, {y});
  }

  bool upper_;
};

std::optional<gpu::IndexType> index_type(ElementType type) {
  switch (type) {
    case ElementType::kInt64:
      return gpu::IndexType::kInt64;
    case ElementType::kInt32:
      return gpu::IndexType::kInt32;
    case ElementType::kInt16:
      return gpu::IndexType::kInt16;
    case ElementType::kInt8:
      return gpu::IndexType::kInt8;
    case ElementType::kUint64:
      return gpu::IndexType::kUint64;
    case ElementType::kUint32:
      return gpu::IndexType::kUint32;
    case ElementType::kUint16:
      return gpu::IndexType::kUint16;
    case ElementType::kUint8:
      return gpu::IndexType::kUint8;
    case ElementType::kHalf:
      return gpu::IndexType::kHalf;
    case ElementType::kFloat:
      return gpu::IndexType::kFloat;
    default:
      return std::nullopt;
  }
}

// The depth is input 1, what is off and on input 2.
class OneHot final : public gpu::DeviceKernel {
 public:
  OneHot(const Node& node, gpu::Device& device)
      : DeviceKernel(device), axis_(node.find_int("axis").value_or(-1)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &index = call.input(0), &values = call.input(2);
    if (values.shape != Shape{2}) throw Error("the values must be two: off and on");
    const size_t rank = index.shape.rank(), axis = axis_of(axis_, rank + 1);
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
  }

  static int64_t depth(const Call& call) {
    const Tensor& given = call.input(1);
    double depth = 0;
    if (is_float(given.type)) {
      depth = call.number(1, 0.0f);
    } else {
      const std::vector<int64_t> whole = call.integers(1);
      if (whole.size() != 1) throw Error("the depth must be one number");
      depth = static_cast<double>(whole[0]);
    }
    if (!(depth >= 0 && depth <= INT32_MAX)) throw Error("a depth that is out of range");
    return static_cast<int64_t>(depth);
  }

  int64_t axis_;
};

std::string refuse_range(const Node& node) {
  const ElementType type = node.inputs[0].type;
  const bool known = type == ElementType::kFloat || type == ElementType::kInt16 ||
                     type == ElementType::kInt32 || type == ElementType::kInt64;
  return known ? "" : no_kernel(type);
}

std::string refuse_constant(const Node& node) {
  const ElementType type = node.outputs.empty() ? ElementType::kUndefined : node.outputs[0].type;
  return bytes_of(type) > 0 ? "" : "no kernel for the type of its value";
}

std::string refuse_one_hot(const Node& node) {
  if (!index_type(node.inputs[0].type)) {
    return std::string("no kernel for indices of ") + element_type_name(node.inputs[0].type);
  }
  const ElementType depth = node.inputs[1].type;
  const bool known = is_float(depth) || is_whole(depth);
  return known ? "" : std::string("no kernel for a depth of ") + element_type_name(depth);
}

}  // namespace

void add_generate(Kernels& kernels) {
  kernels.add_onnx<Range>("Range", 11, 27).refused(refuse_range).reads_on_host({0, 1, 2}).takes_rare_types();
  kernels.add_onnx<ConstantOfShape>("ConstantOfShape", 9, 28).refused(refuse_constant).reads_on_host({0});
  kernels.add_onnx<Trilu>("Trilu", 14, 14).reads_on_host({1}).takes_rare_types();
  kernels.add_onnx<OneHot>("OneHot", 9, 28).refused(refuse_one_hot).reads_on_host({1}).takes_rare_types();
}

}  // namespace graphopt
