// ScatterElements and ScatterND.
#include "operators/movement/scatter/op.h"

#include <optional>

#include "operators/movement/gather/indexed.h"

namespace graphopt {
namespace {

using gpu::ScatterReduction;

std::optional<ScatterReduction> reduction_of(const Node& node) {
  return find_choice<std::string, ScatterReduction>(node.get_string("reduction", "none"),
                                                    {{"none", ScatterReduction::kNone},
                                                     {"add", ScatterReduction::kAdd},
                                                     {"mul", ScatterReduction::kMul},
                                                     {"min", ScatterReduction::kMin},
                                                     {"max", ScatterReduction::kMax}});
}

void plan_scatter(Call& call, Program& program, gpu::ScatterProblem& p) {
  const Tensor& x = call.input(0);
  p.type = x.type;
  p.bytes = bytes_of(x.type);
  p.narrow = call.input(1).type == ElementType::kInt32;
  const Ref y = set_output(call, 0, x.shape);
  program.launch(gpu::scatter_plan(p, call.aligned()), {Ref::input(0), Ref::input(1), Ref::input(2)}, {y});
}

Planner plan_scatter_elements(const Node& node) {
  return [given = node.get_int("axis", 0), reduction = reduction_of(node).value()](Call& call,
                                                                                   Program& program) {
    require_equal_ranks(call);
    const Tensor &x = call.input(0), &index = call.input(1);
    throw_if(call.input(2).shape != index.shape, "there must be one update for each index");
    gpu::ScatterProblem p;
    p.elements = true;
    p.sizes = x.shape;
    p.indices = index.shape;
    p.axis = axis_of(given, x.shape.rank());
    p.reduction = reduction;
    plan_scatter(call, program, p);
  };
}

Planner plan_scatter_nd(const Node& node) {
  const ScatterReduction reduction = reduction_of(node).value();
  return [=](Call& call, Program& program) {
    const Tensor &x = call.input(0), &index = call.input(1);
    const int64_t k = tuple_length(call);
    throw_if(k < 1 || k > static_cast<int64_t>(x.shape.rank()), "tuples of ", k, " indices do not fit ",
             x.shape);
    const auto indexed = static_cast<size_t>(k);
    const Shape updates = selected_shape(index.shape, x.shape, indexed);
    throw_if(call.input(2).shape != updates, "the updates must have the shape ", updates);
    gpu::ScatterProblem p;
    p.sizes = Shape(indexed);
    for (size_t d = 0; d < indexed; ++d) p.sizes[d] = x.shape[d];
    p.indices = index.shape;
    p.inner = x.shape.elements(indexed);
    p.reduction = reduction;
    plan_scatter(call, program, p);
  };
}

std::string refuse_scatter(const Node& node) {
  const auto reduction = reduction_of(node);
  if (!reduction) return "this reduction is not known";
  if (node.inputs[2].type != node.type()) return "data and updates have different types";
  if (*reduction == ScatterReduction::kNone) return "";
  const ElementType type = node.type();
  const bool wide = is_unsigned(type) && bytes_of(type) >= 4;
  const bool wraps = wide && (*reduction == ScatterReduction::kAdd || *reduction == ScatterReduction::kMul);
  return is_float(type) || wraps || is_byte(type) || type == ElementType::kInt32 ||
                 type == ElementType::kInt64
             ? ""
             : std::string("no kernel for a reduction of ") + element_type_name(type);
}

std::string refuse_scatter_elements(const Node& node) {
  const std::string refusal = refuse_elements(node);
  return refusal.empty() ? refuse_scatter(node) : refusal;
}

std::string refuse_scatter_nd(const Node& node) {
  const std::string refusal = refuse_tuples(node);
  return refusal.empty() ? refuse_scatter(node) : refusal;
}

}  // namespace

void add_scatter(Kernels& kernels) {
  kernels.add_onnx("ScatterElements", 11, 18, plan_scatter_elements)
      .refused(refuse_scatter_elements)
      .accepts_all_numbers();
  kernels.add_onnx("ScatterND", 11, 18, plan_scatter_nd).refused(refuse_scatter_nd).accepts_all_numbers();
}

}  // namespace graphopt
