// ScatterElements and ScatterND.
#include "operators/movement/scatter/op.h"

#include <optional>

#include "operators/movement/gather/indexed.h"

namespace graphopt {
namespace {

using gpu::ScatterHow;

std::optional<ScatterHow> how_of(const Node& node) {
  const std::string how = node.find_string("reduction").value_or("none");
  if (how == "none") return ScatterHow::kNone;
  if (how == "add") return ScatterHow::kAdd;
  if (how == "mul") return ScatterHow::kMul;
  if (how == "min") return ScatterHow::kMin;
  if (how == "max") return ScatterHow::kMax;
  return std::nullopt;
}

void plan_scatter(Call& call, Program& program, gpu::ScatterProblem& p) {
  const Tensor& x = call.input(0);
  p.type = x.type;
  p.bytes = bytes_of(x.type);
  p.narrow = call.input(1).type == ElementType::kInt32;
  const Ref y = set_output(call, 0, x.shape);
  program.launch(gpu::scatter_plan(p, call.aligned()), {Ref::input(0), Ref::input(1), Ref::input(2)}, {y});
}

class ScatterElements final : public AlongAxis {
 public:
  ScatterElements(const Node& node, gpu::Device& device)
      : AlongAxis(node, device), how_(how_of(node).value()) {}

 private:
  void plan(Call& call, Program& program) const override {
    require_equal_ranks(call);
    const Tensor &x = call.input(0), &index = call.input(1);
    if (call.input(2).shape != index.shape) throw Error("there must be one update for each index");
    gpu::ScatterProblem p;
    p.elements = true;
    p.sizes = x.shape;
    p.indices = index.shape;
    p.axis = axis(call);
    p.how = how_;
    plan_scatter(call, program, p);
  }

  ScatterHow how_;
};

class ScatterND final : public gpu::DeviceKernel {
 public:
  ScatterND(const Node& node, gpu::Device& device) : DeviceKernel(device), how_(how_of(node).value()) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &index = call.input(1);
    const int64_t k = tuple_length(call);
    if (k < 1 || k > static_cast<int64_t>(x.shape.rank())) {
      throw Error("tuples of " + std::to_string(k) + " indices do not fit " + x.shape.text());
    }
    const auto indexed = static_cast<size_t>(k);
    const Shape updates = pointed_at(index.shape, x.shape, indexed);
    if (call.input(2).shape != updates) throw Error("the updates must have the shape " + updates.text());
    gpu::ScatterProblem p;
    p.sizes = Shape(indexed);
    for (size_t d = 0; d < indexed; ++d) p.sizes[d] = x.shape[d];
    p.indices = index.shape;
    p.inner = x.shape.elements(indexed);
    p.how = how_;
    plan_scatter(call, program, p);
  }

  ScatterHow how_;
};

std::string refuse_scatter(const Node& node) {
  const auto how = how_of(node);
  if (!how) return "this reduction is not known";
  if (node.inputs[2].type != node.type()) return "data and updates of two types";
  if (*how == ScatterHow::kNone) return "";
  const ElementType type = node.type();
  const bool wide = is_unsigned(type) && bytes_of(type) >= 4;
  const bool wraps = wide && (*how == ScatterHow::kAdd || *how == ScatterHow::kMul);
  return is_float(type) || wraps || is_byte(type) || type == ElementType::kInt32 ||
                 type == ElementType::kInt64
             ? ""
             : std::string("no reduction of ") + element_type_name(type);
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
  kernels.add_onnx<ScatterElements>("ScatterElements", 11, 18)
      .refused(refuse_scatter_elements)
      .takes_rare_types();
  kernels.add_onnx<ScatterND>("ScatterND", 11, 18).refused(refuse_scatter_nd).takes_rare_types();
}

}  // namespace graphopt
