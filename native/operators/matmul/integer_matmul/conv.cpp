#include "operators/matmul/integer_matmul/conv.h"

#include "blocks/gpu/walk_plan.h"
#include "operators/layout.h"
#include "operators/movement/movement/op.h"

namespace graphopt::integer_matmul {
namespace {

using gpu::IntegerProblem;
using gpu::ScaleProblem;

// Swaps the last two axes of `from`.
void swap_axes(const Call& call, Program& program, const Shape& shape, int64_t bytes, Ref from, Ref to) {
  if (shape.elements() == 0) return;
  program.launch(gpu::strided_copy_plan(gpu::permutation(shape, {0, 2, 1}, bytes), call.aligned()), {from},
                 {to});
}

Shape channels_first(const Shape& last) {
  Shape first = last;
  for (size_t d = 2; d < last.rank(); ++d) first[d] = last[d - 1];
  if (last.rank() > 1) first[1] = last[last.rank() - 1];
  return first;
}
Shape channels_last(const Shape& first) {
  Shape last = first;
  for (size_t d = 1; d + 1 < first.rank(); ++d) last[d] = first[d + 1];
  last[first.rank() - 1] = first[1];
  return last;
}

}  // namespace

IntegerConv::IntegerConv(const Node& node, gpu::Device& device, Operands in, bool last)
    : IntegerMatMul(node, device, in),
      window_(node),
      groups_(node.get_int("group", 1)),
      last_(last || node.get_bool("channels_last")),
      last_filters_(last),
      // The provider sets these attributes (runtime/provider/quantized_groups.h).
      sum_{static_cast<hip::IntegerResidual>(node.get_int("sum_kind", 0)), node.get_float("sum_left", 0),
           node.get_float("sum_right", 0), node.get_float("sum_shift", 0), node.get_float("sum_least", 0)} {}

void IntegerConv::prepare(const Node& node) {
  const auto w = node.constant(in_[kB]);
  if (!w || !is_byte(w->type) || w->shape.rank() < 3 || w->shape.elements() == 0) return;
  const ElementType type = w->type;
  if (is_asymmetric(device_, node, in_[kBZero], type)) return;
  const Shape s = last_filters_ ? channels_first(w->shape) : w->shape;
  gpu::IntegerLines lines;
  lines.lines = s[0];
  lines.K = s[1];
  lines.taps = s.elements(2);
  lines.taps_first = last_filters_;
  const bool depthwise = s[0] == groups_ && s[1] == 1 && groups_ % hip::kIntegerPack == 0;
  if (!depthwise) return prepare_right(node, lines, nullptr, pack_filters(*w, s));
  // Each tap has a row with one element of each channel.
  gpu::IntegerLines rows;
  rows.lines = lines.taps;
  rows.K = lines.lines;
  rows.transposed = true;
  prepare_right(node, lines, &rows);
}

std::vector<uint8_t> IntegerConv::pack_filters(const Tensor& w, const Shape& s) {
  if (groups_ == 1 && s.rank() != kLayoutRank) return {};
  Shape image = s;  // an image with one window: space_to_depth does not depend on the size of X
  image[0] = 1;
  image[1] *= groups_;
  for (size_t axis = 0; axis + 2 < s.rank(); ++axis) image[axis + 2] = window_.span(axis, s[axis + 2]);
  ConvolutionProblem p;
  describe_convolution(image, s, p);
  // With auto_pad SAME, the padding and therefore the packed filters would depend on the size of X.
  is_space_to_depth_ =
      (window_.auto_pad() == "NOTSET" || window_.auto_pad() == "VALID") && gpu::space_to_depth(p);
  if (groups_ == 1 && !is_space_to_depth_) return {};
  std::vector<uint8_t> bytes(w.bytes());
  const gpu::WorkStream stream(device_);
  device_.copy(bytes.data(), w.data, bytes.size(), stream.get());
  stream.synchronize();
  const auto pack = is_space_to_depth_ ? gpu::pack_space_to_depth_filters : gpu::pack_filters_of_groups;
  return pack(p, bytes.data(), last_filters_, w.type == ElementType::kInt8);
}

void IntegerConv::plan(Call& call, Program& program) const {
  const Shape &x = call.input(in_[kA]).shape, &w = call.input(in_[kB]).shape;
  ConvolutionProblem p;
  const Shape shape =
      describe_convolution(last_ ? channels_first(x) : x, last_filters_ ? channels_first(w) : w, p);
  const Ref y = set_output(call, 0, last_ ? channels_last(shape) : shape, type_of_y(call));
  require_one(call, in_[kAScale], "the scale of X");
  require_one(call, in_[kAZero], "the zero point of X");
  if (call.has_input(in_[kBias]) && call.input(in_[kBias]).shape.elements() != p.y_channels()) {
    throw Error("B ", call.input(in_[kBias]).shape, " does not have one element for each output channel");
  }
  if (shape.elements() == 0) return;
  const bool depthwise = gpu::refuse_integer_depthwise(p) == nullptr;
  const bool supported = depthwise || gpu::refuse_integer_conv(p, device_.facts()) == nullptr;
  const bool extended = call.has_input(in_[kResidual]) || call.has_input(in_[kTable]);
  if (call.has_input(in_[kResidual]) && call.input(in_[kResidual]).shape != call.outputs[0].shape) {
    throw Error("the residual ", call.input(in_[kResidual]).shape, " does not have the shape of Y");
  }
  if (supported && is_prepared() && (extended || (call.aligned() && x.elements() > 0))) {
    plan_last(call, program, p, depthwise, y);
  } else {
    throw_if(extended, "no kernel adds a residual to this convolution or applies a table to it");
    plan_first(call, program, p, y);
  }
}

void IntegerConv::plan_last(const Call& call, Program& program, const ConvolutionProblem& p, bool depthwise,
                            Ref y) const {
  const int64_t C = p.x_channels(), filters = p.y_channels();
  gpu::IntegerLines lines;
  lines.lines = filters;
  lines.K = p.C;
  lines.taps = p.taps();
  const Right right =
      plan_right(call, program, lines, input_or_none(call, in_[kAScale]), input_or_none(call, in_[kAZero]));
  const auto aligned = [&](size_t i) {
    const Ref from = input_or_none(call, i);
    if (call.aligned() || !call.has_input(i)) return from;
    const auto bytes = static_cast<int64_t>(call.input(i).bytes());
    const Ref to = program.reserve(bytes);
    program.copy(to, from, bytes);
    return to;
  };
  // If X is in channels last, the direct kernel reads it without a copy that pads the channels.
  const bool direct =
      !depthwise && (gpu::prefers_integer_conv_direct(p, device_.facts()) ||
                     (last_ && C % 16 == hip::kIntegerPack && gpu::has_integer_conv_direct(device_.facts())));
  Ref x = aligned(in_[kA]), residual = aligned(in_[kResidual]);
  if (!last_ && depthwise) {
    const Ref from = x;
    x = program.reserve(p.N * C * p.in_size());
    swap_axes(call, program, {p.N, C, p.in_size()}, 1, from, x);
  } else if (is_space_to_depth_) {
    const Ref from = x;
    const ConvolutionProblem blocks = gpu::space_to_depth(p).value();
    x = program.reserve(p.N * blocks.in_size() * 16);
    program.launch(gpu::integer_blocks_plan(p, last_), {from, right.columns}, {x});
  } else if (!last_ || (C % 16 != 0 && !depthwise && !direct)) {
    gpu::IntegerLines pixels;
    pixels.matrices = last_ ? 1 : p.N;
    pixels.lines = last_ ? p.N * p.in_size() : p.in_size();
    pixels.K = C;
    pixels.transposed = !last_;
    pixels.is_signed = true;  // for either type: copies the bytes unchanged
    const Ref from = x;
    x = program.reserve(pixels.packed_bytes());
    program.launch(gpu::integer_lines_plan(pixels), {from}, {x, Ref()});
  }
  const int64_t bytes = bytes_of(type_of_y(call)), size = p.N * p.out_size() * filters * bytes;
  if (!last_ && call.has_input(in_[kResidual])) {
    const Ref from = residual;
    residual = program.reserve(size);
    swap_axes(call, program, {p.N, filters, p.out_size()}, bytes, from, residual);
  }
  gpu::IntegerColumnsProblem columns = right.columns_problem;
  columns.sum = sum_;
  columns.has_table = call.has_input(in_[kTable]);
  const Ref result = last_ && call.aligned() ? y : program.reserve(size);
  program.launch(depthwise ? gpu::integer_depthwise_plan(p, columns)
                 : is_space_to_depth_
                     ? gpu::integer_conv_plan(*gpu::space_to_depth(p), columns, device_.facts())
                 : direct ? gpu::integer_conv_direct_plan(p, columns, device_.facts())
                          : gpu::integer_conv_plan(p, columns, device_.facts()),
                 {x, right.lines, right.columns, residual, input_or_none(call, in_[kTable])}, {result});
  if (!last_) {
    swap_axes(call, program, {p.N, p.out_size(), filters}, bytes, result, y);
  } else if (!call.aligned()) {
    program.copy(y, result, size);
  }
}

void IntegerConv::plan_first(const Call& call, Program& program, const ConvolutionProblem& p, Ref y) const {
  const int64_t filters = p.y_channels(), elements = p.N * filters * p.out_size();
  const int64_t bytes = bytes_of(type_of_y(call));
  IntegerProblem integers;
  integers.left = call.input(in_[kB]).type;
  integers.right = call.input(in_[kA]).type;
  integers.left_zero = {call.has_input(in_[kBZero]),
                        is_many(call, in_[kBZero], filters, "the zero point of W")};
  integers.right_zero.given = call.has_input(in_[kAZero]);
  integers.has_bias = call.has_input(in_[kBias]);
  Ref x = Ref::input(in_[kA]), w = Ref::input(in_[kB]);
  if (last_) {
    x = program.reserve(p.N * p.x_channels() * p.in_size());
    swap_axes(call, program, {p.N, p.in_size(), p.x_channels()}, 1, Ref::input(in_[kA]), x);
  }
  if (last_filters_) {
    w = program.reserve(filters * p.C * p.taps());
    swap_axes(call, program, {filters, p.taps(), p.C}, 1, Ref::input(in_[kB]), w);
  }
  const bool scaled = in_[kBScale] != kNone;
  const Ref result = last_ ? program.reserve(elements * bytes) : y;
  const Ref sums = scaled ? program.reserve(elements * bytes_of(ElementType::kInt32)) : result;
  program.launch(gpu::integer_window_plan(p, integers),
                 {w, x, input_or_none(call, in_[kBZero]), input_or_none(call, in_[kAZero]),
                  input_or_none(call, in_[kBias])},
                 {sums});
  if (scaled) {
    ScaleProblem scales;
    scales.outer = p.N;
    scales.M = filters;
    scales.N = p.out_size();
    scales.left_many = is_many(call, in_[kBScale], filters, "the scale of W");
    add_scales(call, program, scales,
               {sums, Ref::input(in_[kBScale]), Ref::input(in_[kAScale]), result, Ref()});
  }
  if (last_) swap_axes(call, program, {p.N, filters, p.out_size()}, bytes, result, y);
}

Shape IntegerConv::describe_convolution(const Shape& x, const Shape& w, ConvolutionProblem& p) const {
  const size_t axes = x.rank() - 2;
  throw_if(x.rank() < 3 || axes > gpu::kSpatialAxes, "X must have one to three spatial axes");
  throw_if(w.rank() != x.rank(), "X ", x, " and W ", w, " differ in rank");
  throw_if(groups_ < 1 || w[0] % groups_ != 0, "W ", w, " does not divide into the groups");
  p.groups = groups_;
  p.C = w[1];
  p.M = w[0] / groups_;
  return window_.fit(x, w, p, [this](ConvolutionProblem& to, size_t d, size_t i) {
    window_.set_convolution_axis(to, d, i);
  });
}

}  // namespace graphopt::integer_matmul
