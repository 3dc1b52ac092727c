#include "operators/matmul/integer_matmul/matmul.h"

#include <algorithm>
#include <array>

#include "blocks/gpu/walk_plan.h"
#include "device/device_weights.h"
#include "operators/quantized/quantize/dynamic.h"

namespace graphopt::integer_matmul {

using gpu::IntegerProblem;
using gpu::ScaleProblem;

bool is_many(const Call& call, size_t i, int64_t size, const char* what) {
  if (!call.has_input(i)) return false;
  const int64_t elements = call.input(i).shape.elements();
  if (elements == 1) return false;
  if (elements == size) return true;
  throw Error(what, " ", call.input(i).shape, " has neither one element nor ", size);
}

void require_one(const Call& call, size_t i, const char* what) { (void)is_many(call, i, 1, what); }

bool is_asymmetric(gpu::Device& device, const Node& node, size_t zero, ElementType type) {
  const uint8_t none = type == ElementType::kUint8 ? 128 : 0;
  if (!node.has_input(zero)) return none != 0;
  const auto given = node.constant(zero);
  if (!given) return true;
  std::vector<uint8_t> bytes(static_cast<size_t>(given->shape.elements()));
  const gpu::WorkStream stream(device);
  device.copy(bytes.data(), given->data, bytes.size(), stream.get());
  stream.synchronize();
  return std::any_of(bytes.begin(), bytes.end(), [none](uint8_t x) { return x != none; });
}

IntegerMatMul::IntegerMatMul(const Node& node, gpu::Device& device, Operands in)
    : DeviceKernel(device),
      in_(in),
      alpha_(node.get_float("alpha", 1.0f)),
      transpose_a_(node.get_bool("transA")),
      transpose_b_(node.get_bool("transB")) {
  // The provider sets these attributes (runtime/provider/quantized_groups.h).
  act_.kind = static_cast<ActivationKind>(node.get_int("activation", 0));
  act_.a = node.get_float("activation_a", 0.0f);
  act_.b = node.get_float("activation_b", 0.0f);
}

void IntegerMatMul::prepare(const Node& node) {
  const auto b = node.constant(in_[kB]);
  if (!b || b->shape.rank() < 2) return;
  const size_t rank = b->shape.rank();
  gpu::IntegerLines lines;
  lines.matrices = b->shape.elements(0, rank - 2);
  lines.lines = b->shape[rank - (transpose_b_ ? 2 : 1)];
  lines.K = b->shape[rank - (transpose_b_ ? 1 : 2)];
  lines.transposed = !transpose_b_;
  prepare_right(node, lines);
}

void IntegerMatMul::plan(Call& call, Program& program) const {
  auto [p, shape] =
      matmul_of(call.input(in_[kA]).shape, call.input(in_[kB]).shape, transpose_a_, transpose_b_);
  const Ref y = set_output(call, 0, shape, type_of_y(call));
  Ref a = Ref::input(in_[kA]), a_scale = input_or_none(call, in_[kAScale]),
      a_zero = input_or_none(call, in_[kAZero]);
  if (in_.dynamic()) {
    const Shape& x = call.input(in_[kA]).shape;
    a = program.reserve(x.elements());
    a_scale = program.reserve(bytes_of(ElementType::kFloat));
    a_zero = program.reserve(1);
    quantize_dynamically(program, x, call.aligned(), Ref::input(in_[kA]), a, a_scale, a_zero);
  }
  require_one(call, in_[kAScale], "the scale of A");
  require_one(call, in_[kAZero], "the zero point of A");
  throw_if(
      !in_.has_integer_bias() && call.has_input(in_[kBias]) && call.input(in_[kBias]).shape.elements() != p.N,
      "there must be a bias for each column");
  std::array<int64_t, 2> bias_strides = {};
  if (in_.has_integer_bias() && call.has_input(in_[kBias])) {
    const auto strides = gpu::broadcast(call.input(in_[kBias]).shape, {p.M, p.N});
    std::copy(strides.begin(), strides.end(), bias_strides.begin());
  }
  const bool on_matrix_units = gpu::has_integer_gemm(device_.facts()) && call.aligned() &&
                               is_byte(call.input(in_[kB]).type) && bias_strides[0] == 0 &&
                               shape.elements() > 0 && p.K > 0 && p.batch.elements() <= gpu::kMaxGrid;
  if (on_matrix_units) return plan_on_matrix_units(call, program, std::move(p), {a, a_scale, a_zero, y});
  IntegerProblem integers;
  integers.left = in_.dynamic() ? ElementType::kUint8 : call.input(in_[kA]).type;
  integers.right = call.input(in_[kB]).type;
  integers.left_zero.given = in_.dynamic() || call.has_input(in_[kAZero]);
  integers.right_zero = {call.has_input(in_[kBZero]), is_many(call, in_[kBZero], p.N, "the zero point of B")};
  Ref bias;
  if (in_.has_integer_bias() && call.has_input(in_[kBias])) {
    bias = Ref::input(in_[kBias]);
    integers.has_bias = true;
    integers.bias_m = bias_strides[0];
    integers.bias_n = bias_strides[1];
  }
  const bool scaled = in_[kBScale] != kNone;
  ScaleProblem scales;
  scales.outer = p.batch.elements();
  scales.M = p.M;
  scales.N = p.N;
  const Ref sums = scaled ? program.reserve(scales.outer * p.M * p.N * bytes_of(ElementType::kInt32)) : y;
  program.launch(gpu::integer_matmul_plan(p, integers),
                 {a, Ref::input(in_[kB]), a_zero, input_or_none(call, in_[kBZero]), bias}, {sums});
  if (!scaled) return;
  scales.right_many = is_many(call, in_[kBScale], p.N, "the scale of B");
  scales.alpha = alpha_;
  Ref added;
  if (!in_.has_integer_bias() && call.has_input(in_[kBias])) {
    added = Ref::input(in_[kBias]);
    scales.has_bias = true;
  }
  add_scales(call, program, scales, {sums, a_scale, Ref::input(in_[kBScale]), y, added});
}

void IntegerMatMul::plan_on_matrix_units(const Call& call, Program& program, gpu::GemmProblem p,
                                         const Left& left) const {
  gpu::IntegerLines rows, columns;
  rows.matrices = call.input(in_[kA]).shape.elements() / (p.M * p.K);
  rows.lines = p.M;
  columns.matrices = call.input(in_[kB]).shape.elements() / (p.K * p.N);
  columns.lines = p.N;
  rows.K = columns.K = p.K;
  rows.transposed = transpose_a_;
  columns.transposed = !transpose_b_;
  const Right right = plan_right(call, program, columns, left.scale, left.zero);
  const bool is_unsigned = right.columns_problem.left == ElementType::kUint8;
  rows.is_signed = !is_unsigned;
  // The kernel reads rows in packs of 16 bytes. Rows that consist of complete packs need no copy.
  const bool is_aligned = !transpose_a_ && p.K % 16 == 0;
  const Ref a = is_aligned ? left.a : program.reserve(rows.packed_bytes());
  const Ref sums = right.is_asymmetric ? program.reserve(rows.sum_bytes()) : Ref();
  if (!is_aligned || right.is_asymmetric) {
    program.launch(gpu::integer_lines_plan(rows), {left.a}, {is_aligned ? Ref() : a, sums});
  }
  for (int64_t& step : p.a_batch) step /= p.M * p.K;
  for (int64_t& step : p.b_batch) step /= p.K * p.N;
  program.launch(gpu::integer_gemm_plan(p, right.columns_problem, right.is_asymmetric,
                                        is_aligned && is_unsigned, device_.facts()),
                 {a, right.lines, right.columns, sums}, {left.y});
}

void IntegerMatMul::prepare_right(const Node& node, gpu::IntegerLines lines, const gpu::IntegerLines* packed,
                                  const std::vector<uint8_t>& given) {
  const auto b = node.constant(in_[kB]);
  if (!gpu::has_integer_gemm(device_.facts()) || !b || !is_byte(b->type) || b->shape.elements() == 0) return;
  lines.is_signed = b->type == ElementType::kInt8;
  is_asymmetric_ = is_asymmetric(device_, node, in_[kBZero], b->type);
  gpu::IntegerLines stored = packed != nullptr ? *packed : lines;
  stored.is_signed = lines.is_signed;
  sums_at_ = given.empty() ? stored.packed_bytes() : static_cast<int64_t>(given.size());
  const auto bytes = static_cast<size_t>(sums_at_ + lines.sum_bytes());
  lines_ =
      gpu::DeviceWeights::process().get(device_, "packed int8 lines", bytes, [&](void* memory, void* stream) {
        const void* inputs[] = {b->data};
        void* of_stored[] = {memory, nullptr};
        void* of_lines[] = {nullptr, static_cast<char*>(memory) + sums_at_};
        if (given.empty()) {
          device_.run(gpu::integer_lines_plan(stored), {inputs, of_stored}, stream);
        } else {
          device_.copy(memory, given.data(), given.size(), stream);
        }
        device_.run(gpu::integer_lines_plan(lines), {inputs, of_lines}, stream);
      });
  Call call;
  call.inputs.resize(node.inputs.size());
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const auto given = node.constant(i);
    if (given) call.inputs[i] = *given;
    if (node.has_input(i) && !given && i != in_[kA] && i != in_[kResidual]) return;
  }
  // With a bias for each row, the node runs on the vector unit, which does not use columns_.
  const bool biased_rows = call.has_input(in_[kBias]) && call.inputs[in_[kBias]].shape.rank() == 2 &&
                           call.inputs[in_[kBias]].shape[0] != 1;
  if (in_.dynamic() || biased_rows) return;
  call.inputs[in_[kA]].type = node.inputs[in_[kA]].type;
  const gpu::IntegerColumnsProblem p = describe_columns(call, lines);
  columns_ = gpu::DeviceWeights::process().get(
      device_, "operands of an int8 epilogue", static_cast<size_t>(p.bytes()),
      [&](void* memory, void* stream) {
        const auto of = [&](Role role) -> const void* {
          return call.has_input(in_[role]) ? call.inputs[in_[role]].data : nullptr;
        };
        const void* inputs[] = {static_cast<char*>(lines_.get()) + sums_at_,
                                of(kBias),
                                of(kAZero),
                                of(kBZero),
                                of(kAScale),
                                of(kBScale),
                                of(kYScale),
                                of(kYZero)};
        void* outputs[] = {memory};
        device_.run(gpu::integer_columns_plan(p), {inputs, outputs}, stream);
      });
}

IntegerMatMul::Right IntegerMatMul::plan_right(const Call& call, Program& program, gpu::IntegerLines lines,
                                               Ref scale, Ref zero) const {
  const ElementType type = call.input(in_[kB]).type;
  lines.is_signed = type == ElementType::kInt8;
  Right right;
  right.columns_problem = describe_columns(call, lines);
  right.is_asymmetric = lines_ != nullptr ? is_asymmetric_ : call.has_input(in_[kBZero]) || !lines.is_signed;
  Ref sums;
  if (lines_ != nullptr) {
    right.lines = Ref::owned(lines_.get());
    sums = Ref::owned(static_cast<char*>(lines_.get()) + sums_at_);
  } else {
    right.lines = program.reserve(lines.packed_bytes());
    sums = program.reserve(lines.sum_bytes());
    program.launch(gpu::integer_lines_plan(lines), {Ref::input(in_[kB])}, {right.lines, sums});
  }
  if (columns_ != nullptr) {
    right.columns = Ref::owned(columns_.get());
    return right;
  }
  right.columns = program.reserve(right.columns_problem.bytes());
  program.launch(gpu::integer_columns_plan(right.columns_problem),
                 {sums, input_or_none(call, in_[kBias]), zero, input_or_none(call, in_[kBZero]), scale,
                  input_or_none(call, in_[kBScale]), input_or_none(call, in_[kYScale]),
                  input_or_none(call, in_[kYZero])},
                 {right.columns});
  return right;
}

gpu::IntegerColumnsProblem IntegerMatMul::describe_columns(const Call& call,
                                                           const gpu::IntegerLines& lines) const {
  gpu::IntegerColumnsProblem p;
  p.matrices = lines.matrices;
  p.columns = lines.lines;
  p.K = lines.K * lines.taps;
  p.left = in_.dynamic() ? ElementType::kUint8 : call.inputs[in_[kA]].type;
  p.right = call.input(in_[kB]).type;
  p.y = type_of_y(call);
  p.left_zero.given = in_.dynamic() || call.has_input(in_[kAZero]);
  p.right_zero = {call.has_input(in_[kBZero]), is_many(call, in_[kBZero], p.columns, "the zero point of B")};
  p.has_scales = in_[kBScale] != kNone;
  p.right_scales = is_many(call, in_[kBScale], p.columns, "the scale of B");
  p.has_bias = call.has_input(in_[kBias]);
  p.float_bias = p.has_bias && call.input(in_[kBias]).type == ElementType::kFloat;
  p.many_biases = is_many(call, in_[kBias], p.columns, "the bias");
  p.has_y_zero = call.has_input(in_[kYZero]);
  p.alpha = alpha_;
  p.act = act_;
  require_one(call, in_[kYScale], "the scale of Y");
  require_one(call, in_[kYZero], "the zero point of Y");
  return p;
}

void IntegerMatMul::add_scales(const Call& call, Program& program, ScaleProblem& p,
                               const Scaled& refs) const {
  require_one(call, in_[kYScale], "the scale of Y");
  require_one(call, in_[kYZero], "the zero point of Y");
  if (call.has_input(in_[kYScale])) p.quantized = type_of_y(call);
  p.has_zero = call.has_input(in_[kYZero]);
  p.act = act_;
  program.launch(gpu::scale_sums_plan(p),
                 {refs.sums, refs.left, refs.right, input_or_none(call, in_[kYScale]),
                  input_or_none(call, in_[kYZero]), refs.bias},
                 {refs.y});
}

ElementType IntegerMatMul::type_of_y(const Call& call) const {
  if (in_[kBScale] == kNone) return ElementType::kInt32;
  if (!call.has_input(in_[kYScale])) return ElementType::kFloat;
  return call.has_input(in_[kYZero]) ? call.input(in_[kYZero]).type : call.inputs[in_[kA]].type;
}

}  // namespace graphopt::integer_matmul
