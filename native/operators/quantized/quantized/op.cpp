// The element-wise and reducing QLinear* operators of com.microsoft on quantized 8-bit values.
#include "operators/quantized/quantized/op.h"

#include <algorithm>

#include "operators/elementwise/elementwise/op.h"
#include "operators/kernel_bases.h"
#include "operators/layout.h"
#include "operators/movement/movement/op.h"
#include "operators/pooling/pool/op.h"
#include "operators/quantized/quantize/op.h"

namespace graphopt {
namespace {

using gpu::QuantizedOp;
using gpu::QuantizedProblem;

// Input indices of a quantized operand: its elements, scale and zero point.
struct QuantizedOperand {
  size_t x, scale, zero;
};

bool is_signed_byte(const Tensor& x) { return x.type == ElementType::kInt8; }

// Throws Error unless the scale, and the zero point if there is one, have one element each.
void require_one(const Call& call, const QuantizedOperand& in) {
  for (const size_t i : {in.scale, in.zero}) {
    if (call.has_input(i) && call.input(i).shape.elements() != 1) {
      throw Error("a scale or zero point ", call.input(i).shape, " must have one element");
    }
  }
}

// Computes to = quantize(act(dequantize(x))).
void add_activation(const Call& call, Program& program, const Activation& act, const QuantizedOperand& x,
                    const QuantizedOperand& y, Ref to) {
  require_one(call, x);
  require_one(call, y);
  QuantizedProblem p;
  p.act = act;
  p.is_signed = is_signed_byte(call.input(x.x));
  p.a_zero = call.has_input(x.zero);
  p.y_zero = call.has_input(y.zero);
  p.a = p.y = call.input(x.x).shape;
  program.launch(gpu::quantized_plan(p, call.aligned()),
                 {Ref::input(x.x), Ref::input(x.scale), input_or_none(call, x.zero), Ref(), Ref(), Ref(),
                  Ref::input(y.scale), input_or_none(call, y.zero)},
                 {to});
}

// Requantizes x to the scale and zero point of y, in the workspace.
Ref rescaled(const Call& call, Program& program, const QuantizedOperand& x, const QuantizedOperand& y) {
  const Ref to = program.reserve(call.input(x.x).shape.elements());
  add_activation(call, program, {}, x, y, to);
  return to;
}

// Transposes x, which has byte elements and this shape, by `perm` into `to`.
void add_transposition(const Call& call, Program& program, const Shape& shape,
                       const std::vector<size_t>& perm, Ref x, Ref to) {
  program.launch(gpu::strided_copy_plan(gpu::permutation(shape, perm, 1), call.aligned()), {x}, {to});
}

// The operands of operators with one input X. Only the scale and zero point of Y are inputs; kY.x is the index of X.
constexpr QuantizedOperand kX = {0, 1, 2}, kY = {0, 3, 4};

// QLinearSigmoid and QLinearLeakyRelu, which have one input.
Planner plan_quantized_activation(const Node& node, ActivationKind kind) {
  Activation act;
  act.kind = kind;
  if (kind == ActivationKind::kLeakyRelu) act.a = node.get_float("alpha", 0.01f);
  return [=](Call& call, Program& program) {
    const Ref y = set_output(call, 0, call.input(0).shape);
    add_activation(call, program, act, kX, kY, y);
  };
}

// Input 1 is a table with an element for each byte.
void plan_quantized_table(Call& call, Program& program) {
  QuantizedProblem p;
  p.op = QuantizedOp::kTable;
  p.a = p.y = call.input(0).shape;
  throw_if(call.input(1).shape.elements() != 256, "the table must have 256 elements");
  const Ref y = set_output(call, 0, p.y, call.input(1).type);
  program.launch(gpu::quantized_plan(p, call.aligned()), {Ref::input(0), Ref::input(1)}, {y});
}

// QLinearAdd and QLinearMul, which have two inputs.
Planner plan_quantized_binary(const Node& node, QuantizedOp op) {
  // The provider fuses Relu (runtime/provider/quantized_groups.h).
  Activation act;
  act.kind = static_cast<ActivationKind>(node.get_int("activation", 0));
  return [=](Call& call, Program& program) {
    constexpr QuantizedOperand a = {0, 1, 2}, b = {3, 4, 5}, c = {0, 6, 7};
    for (const QuantizedOperand& operand : {a, b, c}) require_one(call, operand);
    QuantizedProblem p;
    p.op = op;
    p.act = act;
    p.is_signed = is_signed_byte(call.input(a.x));
    p.a_zero = call.has_input(a.zero);
    p.b_zero = call.has_input(b.zero);
    p.y_zero = call.has_input(c.zero);
    p.a = call.input(a.x).shape;
    p.b = call.input(b.x).shape;
    p.y = gpu::broadcast_shape(p.a, p.b);
    const Ref y = set_output(call, 0, p.y);
    program.launch(
        gpu::quantized_plan(p, call.aligned()),
        {Ref::input(a.x), Ref::input(a.scale), input_or_none(call, a.zero), Ref::input(b.x),
         Ref::input(b.scale), input_or_none(call, b.zero), Ref::input(c.scale), input_or_none(call, c.zero)},
        {y});
  };
}

void plan_quantized_where(Call& call, Program& program) {
  constexpr QuantizedOperand x = {1, 2, 3}, y = {4, 5, 6}, z = {0, 7, 8};
  gpu::IntegerElementwiseProblem p;
  p.op = gpu::IntegerOp::kWhere;
  p.masked = p.binary = true;
  p.bytes = 1;
  p.mask = call.input(0).shape;
  p.a = call.input(x.x).shape;
  p.b = call.input(y.x).shape;
  p.y = gpu::broadcast_shape(gpu::broadcast_shape(p.mask, p.a), p.b);
  const Ref to = set_output(call, 0, p.y, call.input(x.x).type);
  const Ref left = rescaled(call, program, x, z), right = rescaled(call, program, y, z);
  program.launch(gpu::integer_elementwise_plan(p, call.aligned()), {left, right, Ref::input(0)}, {to});
}

// The provider sets the attribute `equal`: a bit for each input that has the scale and zero point of the output.
Planner plan_quantized_concat(const Node& node, bool last) {
  const int64_t axis_of_node = node.get_int("axis"), equal = node.get_int("equal", 0);
  const int64_t given =
      last ? static_cast<int64_t>(channels_last_axis(axis_of(axis_of_node, kLayoutRank))) : axis_of_node;
  return [=](Call& call, Program& program) {
    const size_t axis = axis_of(given, call.input(2).shape.rank());
    const Shape shape = concatenated(call, 2, 3, axis);
    const Ref y = set_output(call, 0, shape, call.input(2).type);
    gpu::StridedCopy copy;
    copy.bytes = 1;
    copy.y_strides = gpu::contiguous(shape);
    for (size_t i = 2; i < call.inputs.size(); i += 3) {
      copy.shape = call.input(i).shape;
      if (copy.shape.elements() == 0) continue;
      copy.x_strides = gpu::contiguous(copy.shape);
      const size_t bit = (i - 2) / 3;
      const bool is_equal = bit < 63 && (equal >> bit & 1) != 0;
      const Ref part = is_equal ? Ref::input(i) : rescaled(call, program, {i, i + 1, i + 2}, {0, 0, 1});
      program.launch(gpu::strided_copy_plan(copy, call.aligned()), {part}, {y});
      copy.y_offset += copy.shape[axis] * copy.y_strides[axis];
    }
  };
}

gpu::QuantizedLines lines_of(const Call& call) {
  require_one(call, kX);
  require_one(call, kY);
  gpu::QuantizedLines lines;
  lines.is_signed = is_signed_byte(call.input(0));
  lines.x_zero = call.has_input(kX.zero);
  lines.y_zero = call.has_input(kY.zero);
  return lines;
}

// Computes the means over all axes except batch and channels.
void add_means(const Call& call, Program& program, bool last, Ref y) {
  const Shape& x = call.input(0).shape;
  gpu::QuantizedLines lines = lines_of(call);
  const int64_t channels = last ? x[x.rank() - 1] : x[1];
  lines.outer = last ? x[0] : x[0] * channels;
  lines.inner = last ? channels : 1;
  lines.size = last ? x.elements(1) / std::max<int64_t>(channels, 1) : x.elements(2);
  throw_if(lines.size == 0, "a mean of zero elements");
  program.launch(gpu::quantized_mean_plan(lines, call.aligned()),
                 {Ref::input(0), Ref::input(1), input_or_none(call, kX.zero), Ref::input(3),
                  input_or_none(call, kY.zero)},
                 {y});
}

Planner plan_quantized_mean(const Node& node, bool layout_is_last) {
  const bool last = layout_is_last || node.get_bool("channels_last");
  // ReduceMean may omit the axes of the pixels (runtime/provider/quantized_groups.h).
  const bool keeps_axes = node.get_bool("keepdims", true);
  return [=](Call& call, Program& program) {
    const Shape& x = call.input(0).shape;
    throw_if(x.rank() < 3, "X must have rank 3 or more");
    Shape y = x;
    for (size_t d = last ? 1 : 2; d + (last ? 1 : 0) < y.rank(); ++d) y[d] = 1;
    if (!keeps_axes) y = {x[0], last ? x[x.rank() - 1] : x[1]};
    add_means(call, program, last, set_output(call, 0, y));
  };
}

// Dequantizes, computes the average pool in float, and quantizes.
Planner plan_quantized_average_pool(const Node& node) {
  const PoolWindows of_node(node, true);
  const bool last = node.get_bool("channels_last");
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    throw_if(rank < 3, "X must have rank 3 or more");
    std::vector<size_t> first = {0, rank - 1},
                        back = {0};  // permutations from [N, .., C] to [N, C, ..], and back
    for (size_t d = 1; d + 1 < rank; ++d) first.push_back(d);
    for (size_t d = 2; d < rank; ++d) back.push_back(d);
    back.push_back(1);
    Shape planes = x.shape;
    for (size_t d = 0; last && d < rank; ++d) planes[d] = x.shape[first[d]];
    Shape pooled;
    const gpu::PoolProblem windows = of_node.problem(planes, false, pooled);
    Shape shape = pooled;
    for (size_t d = 0; last && d < rank; ++d) shape[d] = pooled[back[d]];
    const Ref y = set_output(call, 0, shape);
    if (shape.elements() == 0) return;
    if (of_node.cover(planes)) return add_means(call, program, last, y);
    Ref bytes = Ref::input(0);
    if (last) {
      bytes = program.reserve(planes.elements());
      add_transposition(call, program, x.shape, first, Ref::input(0), bytes);
    }
    const gpu::QuantizedLines lines = lines_of(call);
    gpu::QuantizeProblem p;
    p.quantized = x.type;
    p.zero = lines.x_zero;
    p.dequantizes = true;
    p.size = planes.elements();
    const Ref real = program.reserve(p.size * bytes_of(ElementType::kFloat));
    program.launch(gpu::quantize_plan(p, call.aligned()),
                   {bytes, Ref::input(1), input_or_none(call, kX.zero)}, {real});
    p.size = pooled.elements();
    const Ref means = program.reserve(p.size * bytes_of(ElementType::kFloat));
    program.launch(gpu::pool_plan(windows, ElementType::kFloat, call.aligned()), {real}, {means});
    p.dequantizes = false;
    p.zero = lines.y_zero;
    p.zero_first = true;
    const Ref to = last ? program.reserve(p.size) : y;
    program.launch(gpu::quantize_plan(p, call.aligned()),
                   {means, Ref::input(3), input_or_none(call, kY.zero)}, {to});
    if (last) add_transposition(call, program, pooled, back, to, y);
  };
}

// Computes Softmax over one axis or, below opset 13, over all axes from this axis on.
Planner plan_quantized_softmax(const Node& node) {
  const bool flat = node.get_int("opset") < 13;
  const int64_t given = node.get_int("axis", flat ? 1 : -1);
  return [=](Call& call, Program& program) {
    const Shape& x = call.input(0).shape;
    const Ref y = set_output(call, 0, x);
    const size_t axis = axis_of(given, x.rank());
    gpu::QuantizedLines lines = lines_of(call);
    lines.outer = x.elements(0, axis);
    lines.size = flat ? x.elements(axis) : x[axis];
    lines.inner = flat ? 1 : x.elements(axis + 1);
    if (x.elements() == 0) return;
    const Ref table = program.reserve(hip::kExponentials * bytes_of(ElementType::kFloat));
    program.launch(gpu::quantized_exponentials_plan(lines.size), {Ref::input(1)}, {table});
    program.launch(gpu::quantized_softmax_plan(lines),
                   {Ref::input(0), table, Ref(), Ref::input(3), input_or_none(call, kY.zero)}, {y});
  };
}

// Checks the types of operands. The last operand has the scale and zero point of the output; its x is the index of an
// input with the type of the output.
std::string refuse_triples(const Node& node, const std::vector<QuantizedOperand>& triples) {
  const ElementType type = node.inputs[triples.front().x].type;
  if (!is_byte(type)) return no_kernel(type);
  for (const QuantizedOperand& in : triples) {
    if (node.inputs[in.x].type != type) return "the inputs have different types";
    if (node.inputs[in.scale].type != ElementType::kFloat) return "only scales of float";
    if (node.has_input(in.zero) && node.inputs[in.zero].type != type) {
      return "elements and zero point have different types";
    }
  }
  return "";
}

std::string refuse_unary(const Node& node) { return refuse_triples(node, {kX, kY}); }

std::string refuse_binary(const Node& node) {
  return refuse_triples(node, {{0, 1, 2}, {3, 4, 5}, {0, 6, 7}});
}

std::string refuse_where(const Node& node) { return refuse_triples(node, {{1, 2, 3}, {4, 5, 6}, {1, 7, 8}}); }

std::string refuse_concat(const Node& node) {
  if (node.inputs.size() < 5 || node.inputs.size() % 3 != 2) return "inputs that do not come in triples";
  std::vector<QuantizedOperand> triples;
  for (size_t i = 2; i < node.inputs.size(); i += 3) triples.push_back({i, i + 1, i + 2});
  triples.push_back({2, 0, 1});
  return refuse_triples(node, triples);
}

std::string refuse_average_pool(const Node& node) {
  if (node.get_bool("ceil_mode") && node.get_bool("count_include_pad")) {
    return "ceil_mode with count_include_pad: runtimes differ";
  }
  const std::string why = refuse_unary(node);
  return why.empty() ? refuse_pool_windows(node) : why;
}

}  // namespace

void add_quantized(Kernels& kernels) {
  const auto treats_axes_alike = [](Registration& r) {
    r.with_layout([](const Node&) { return Layout::kAny; }).with_byte_layouts();
  };
  const auto add_activation = [&](const char* name, ActivationKind kind) {
    treats_axes_alike(kernels.add_microsoft(name, plan_quantized_activation, kind).refused(refuse_unary));
  };
  add_activation("QLinearSigmoid", ActivationKind::kSigmoid);
  add_activation("QLinearLeakyRelu", ActivationKind::kLeakyRelu);
  // Only the provider makes such nodes (runtime/provider/quantized_groups.h).
  treats_axes_alike(kernels.add_microsoft("QLinearLookup", plan_quantized_table));
  const auto add_binary = [&](const char* name, QuantizedOp op) {
    treats_axes_alike(kernels.add_microsoft(name, plan_quantized_binary, op).refused(refuse_binary));
  };
  add_binary("QLinearAdd", QuantizedOp::kAdd);
  add_binary("QLinearMul", QuantizedOp::kMul);
  kernels.add_microsoft("QLinearWhere", plan_quantized_where).refused(refuse_where);
  kernels.add_microsoft("QLinearConcat", plan_quantized_concat, false)
      .refused(refuse_concat)
      .with_layout([](const Node&) { return Layout::kFollows; })
      .with_byte_layouts();
  kernels.has_channels_last(plan_quantized_concat);
  kernels.add_microsoft("QLinearGlobalAveragePool", plan_quantized_mean, false)
      .refused(refuse_unary)
      .with_layout(
          [](const Node& node) { return node.get_bool("channels_last") ? Layout::kFirst : Layout::kFollows; })
      .with_byte_layouts();
  kernels.has_channels_last(plan_quantized_mean);
  kernels.add_microsoft("QLinearAveragePool", plan_quantized_average_pool).refused(refuse_average_pool);
  kernels.add_microsoft("QLinearSoftmax", plan_quantized_softmax).refused(refuse_unary);
}

}  // namespace graphopt
