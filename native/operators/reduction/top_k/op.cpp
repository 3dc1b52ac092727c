// TopK, ArgMax and ArgMin.
#include "operators/reduction/top_k/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

std::optional<gpu::Ordered> compared_type(ElementType type) {
  using T = ElementType;
  using gpu::Ordered;
  return find_choice<T, Ordered>(type, {{T::kFloat, Ordered::kFloat},
                                        {T::kHalf, Ordered::kHalf},
                                        {T::kInt64, Ordered::kInt64},
                                        {T::kInt32, Ordered::kInt32},
                                        {T::kInt8, Ordered::kInt8},
                                        {T::kUint8, Ordered::kUint8},
                                        {T::kInt16, Ordered::kInt16},
                                        {T::kUint16, Ordered::kUint16},
                                        {T::kUint32, Ordered::kUint32},
                                        {T::kUint64, Ordered::kUint64}});
}

// Sets the sizes of x [outer, R, inner] around an axis, and the type of its elements. Returns the axis.
template <class Problem>
size_t set_order(int64_t given, const Tensor& x, Problem& p) {
  const size_t axis = axis_of(given, x.shape.rank());
  std::tie(p.outer, p.R, p.inner) = split_at(x.shape, axis);
  p.order = compared_type(x.type).value();
  return axis;
}

Planner plan_top_k(const Node& node) {
  const int64_t given_axis = node.get_int("axis", -1), k = node.get_int("k", 0);
  const bool smallest = !node.get_bool("largest", true);
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    gpu::TopKProblem p;
    const size_t axis = set_order(given_axis, x, p);
    p.K = call.has_input(1) ? call.integer(1, "K") : k;
    throw_if(p.K < 0 || p.K > p.R, "K is ", p.K, ", but the axis has ", p.R, " elements");
    p.smallest = smallest;
    Shape y = x.shape;
    y[axis] = p.K;
    const Ref values = set_output(call, 0, y), indices = set_output(call, 1, y, ElementType::kInt64);
    program.launch(gpu::top_k_plan(p), {Ref::input(0)}, {values, indices});
  };
}

Planner plan_arg_extreme(const Node& node, bool smallest) {
  const int64_t given_axis = node.get_int("axis", 0);
  const bool keep = node.get_bool("keepdims", true), last = node.get_bool("select_last_index");
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    gpu::ArgProblem p;
    const size_t axis = set_order(given_axis, x, p);
    throw_if(p.R == 0, "an axis of size 0 has no largest and no smallest element");
    p.smallest = smallest;
    p.last = last;
    Shape y(x.shape.rank() - (keep ? 0 : 1));
    for (size_t d = 0, to = 0; d < x.shape.rank(); ++d) {
      if (d != axis) {
        y[to++] = x.shape[d];
      } else if (keep) {
        y[to++] = 1;
      }
    }
    program.launch(gpu::arg_plan(p), {Ref::input(0)}, {set_output(call, 0, y, ElementType::kInt64)});
  };
}

std::string refuse_type(const Node& node) {
  const auto& x = node.inputs.front();
  if (!compared_type(x.type)) return no_kernel(x.type);
  return x.shape && x.shape->rank() == 0 ? "a scalar has no axis" : "";
}

}  // namespace

void add_top_k(Kernels& kernels) {
  kernels.add_onnx("TopK", 1, 24, plan_top_k).refused(refuse_type).accepts_all_numbers().reads_on_host({1});
  kernels.add_onnx("ArgMax", 1, 13, plan_arg_extreme, false).refused(refuse_type).accepts_all_numbers();
  kernels.add_onnx("ArgMin", 1, 13, plan_arg_extreme, true).refused(refuse_type).accepts_all_numbers();
}

}  // namespace graphopt
