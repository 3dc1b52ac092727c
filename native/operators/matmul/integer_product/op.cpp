// MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, and ONNX Runtime's GEMMs of 8-bit and 16-bit integers.
#include "operators/matmul/integer_product/op.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "blocks/gpu/walk_plan.h"
#include "device/device_weights.h"
#include "operators/kernel_bases.h"
#include "operators/layout.h"
#include "operators/movement/movement/op.h"
#include "operators/quantized/quantize/dynamic.h"
#include "operators/window.h"

namespace graphopt {
namespace {

using gpu::IntegerProblem;
using gpu::ScaleProblem;

constexpr size_t kNone = SIZE_MAX;

enum Role { kA, kB, kAScale, kBScale, kAZero, kBZero, kYScale, kYZero, kBias, kRoles };
enum class Kind {
  kProduct,
  kOfFloats,        // A is float and is quantized first
  kWithBiasOfSums,  // the bias is int32 like the sums
};

// The roles of an operator's inputs, in their order.
class Operands {
 public:
  constexpr Operands(std::initializer_list<Role> order, Kind kind = Kind::kProduct) : kind_(kind) {
    for (size_t& place : place_) place = kNone;
    size_t i = 0;
    for (const Role role : order) place_[role] = i++;
  }
  // Returns the input's index; kNone if the operator has no such input.
  constexpr size_t operator[](Role role) const { return place_[role]; }
  constexpr bool dynamic() const { return kind_ == Kind::kOfFloats; }
  constexpr bool has_integer_bias() const { return kind_ == Kind::kWithBiasOfSums; }

 private:
  size_t place_[kRoles] = {};
  Kind kind_;
};

// In a convolution A is X and B is W.
constexpr Operands kMatMulInteger({kA, kB, kAZero, kBZero});
constexpr Operands kMatMulInteger16({kA, kB});
constexpr Operands kQLinearMatMul({kA, kAScale, kAZero, kB, kBScale, kBZero, kYScale, kYZero});
constexpr Operands kQLinearConv({kA, kAScale, kAZero, kB, kBScale, kBZero, kYScale, kYZero, kBias},
                                Kind::kWithBiasOfSums);
constexpr Operands kQGemm({kA, kAScale, kAZero, kB, kBScale, kBZero, kBias, kYScale, kYZero},
                          Kind::kWithBiasOfSums);
constexpr Operands kMatMulIntegerToFloat({kA, kB, kAScale, kBScale, kAZero, kBZero, kBias});
constexpr Operands kDynamicQuantizeMatMul({kA, kB, kBScale, kBZero, kBias}, Kind::kOfFloats);

// Returns true if a parameter has an element for each of `size` rows or columns, false if it has one for all. Throws
// Error for any other number.
bool is_many(const Call& call, size_t i, int64_t size, const char* what) {
  if (!call.has_input(i)) return false;
  const int64_t elements = call.input(i).shape.elements();
  if (elements == 1) return false;
  if (elements == size) return true;
  throw Error(what, " ", call.input(i).shape, " has neither one element nor ", size);
}

// Throws Error unless the input has one element.
void require_one(const Call& call, size_t i, const char* what) { (void)is_many(call, i, 1, what); }

// Returns whether zero points of packed elements, which are signed, may differ from 0.
bool has_zero_points(gpu::Device& device, const Node& node, size_t zero, ElementType type) {
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

// Integer matrix multiplication; the result is int32 or scaled.
class IntegerProduct : public gpu::DeviceKernel {
 public:
  IntegerProduct(const Node& node, gpu::Device& device, Operands in)
      : DeviceKernel(device),
        in_(in),
        alpha_(node.get_float("alpha", 1.0f)),
        transpose_a_(node.get_bool("transA")),
        transpose_b_(node.get_bool("transB")) {
    // Attributes of nodes that the provider makes (runtime/provider/quantized_groups.h).
    act_.kind = static_cast<ActivationKind>(node.get_int("activation", 0));
    act_.a = node.get_float("activation_a", 0.0f);
    act_.b = node.get_float("activation_b", 0.0f);
  }

  void prepare(const Node& node) override {
    const auto b = node.constant(in_[kB]);
    if (!b || b->shape.rank() < 2) return;
    const size_t rank = b->shape.rank();
    gpu::IntegerLines lines;
    lines.matrices = b->shape.elements(0, rank - 2);
    lines.lines = b->shape[rank - (transpose_b_ ? 2 : 1)];
    lines.K = b->shape[rank - (transpose_b_ ? 1 : 2)];
    lines.across = !transpose_b_;
    prepare_right(node, lines);
  }

 private:
  void plan(Call& call, Program& program) const override {
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
    throw_if(!in_.has_integer_bias() && call.has_input(in_[kBias]) &&
                 call.input(in_[kBias]).shape.elements() != p.N,
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
    integers.right_zero = {call.has_input(in_[kBZero]),
                           is_many(call, in_[kBZero], p.N, "the zero point of B")};
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
    program.launch(gpu::integer_product_plan(p, integers),
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

  struct Left {
    Ref a, scale, zero, y;
  };
  void plan_on_matrix_units(const Call& call, Program& program, gpu::GemmProblem p, const Left& left) const {
    gpu::IntegerLines rows, columns;
    rows.matrices = call.input(in_[kA]).shape.elements() / (p.M * p.K);
    rows.lines = p.M;
    columns.matrices = call.input(in_[kB]).shape.elements() / (p.K * p.N);
    columns.lines = p.N;
    rows.K = columns.K = p.K;
    rows.across = transpose_a_;
    columns.across = !transpose_b_;
    const Right right = plan_right(call, program, columns, left.scale, left.zero);
    const bool is_unsigned = right.columns_problem.left == ElementType::kUint8;
    rows.is_signed = !is_unsigned;
    // Rows of whole packs need no copy.
    const bool packs = !transpose_a_ && p.K % 16 == 0;
    const Ref a = packs ? left.a : program.reserve(rows.packed_bytes());
    const Ref sums = right.has_zeros ? program.reserve(rows.sum_bytes()) : Ref();
    if (!packs || right.has_zeros) {
      program.launch(gpu::integer_lines_plan(rows), {left.a}, {packs ? Ref() : a, sums});
    }
    for (int64_t& step : p.a_batch) step /= p.M * p.K;
    for (int64_t& step : p.b_batch) step /= p.K * p.N;
    program.launch(gpu::integer_gemm_plan(p, right.columns_problem, right.has_zeros, packs && is_unsigned,
                                          device_.facts()),
                   {a, right.lines, right.columns, sums}, {left.y});
  }

 protected:
  // The right operand of an int8 GEMM and the operands of its epilogue, in the layout of the kernels.
  struct Right {
    Ref lines, columns;
    bool has_zeros;  // whether zero points of packed elements may differ from 0
    gpu::IntegerColumnsProblem columns_problem;
  };

  // Prepares constant inputs. `lines`: those of B. `packed`: other lines that are packed instead; the sums are those of
  // `lines`.
  void prepare_right(const Node& node, gpu::IntegerLines lines, const gpu::IntegerLines* packed = nullptr) {
    const auto b = node.constant(in_[kB]);
    if (!gpu::has_integer_gemm(device_.facts()) || !b || !is_byte(b->type) || b->shape.elements() == 0)
      return;
    lines.is_signed = b->type == ElementType::kInt8;
    has_zeros_ = has_zero_points(device_, node, in_[kBZero], b->type);
    gpu::IntegerLines stored = packed != nullptr ? *packed : lines;
    stored.is_signed = lines.is_signed;
    sums_at_ = stored.packed_bytes();
    const auto bytes = static_cast<size_t>(sums_at_ + lines.sum_bytes());
    lines_ = gpu::DeviceWeights::process().get(
        device_, "packed int8 lines", bytes, [&](void* memory, void* stream) {
          const void* inputs[] = {b->data};
          void* of_stored[] = {memory, nullptr};
          void* of_lines[] = {nullptr, static_cast<char*>(memory) + sums_at_};
          device_.run(gpu::integer_lines_plan(stored), {inputs, of_stored}, stream);
          device_.run(gpu::integer_lines_plan(lines), {inputs, of_lines}, stream);
        });
    Call call;
    call.inputs.resize(node.inputs.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto given = node.constant(i);
      if (given) call.inputs[i] = *given;
      if (node.has_input(i) && !given && i != in_[kA]) return;
    }
    // A bias for each row is added on the vector unit.
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

  bool is_prepared() const { return lines_ != nullptr; }

  // Adds the steps that prepare the inputs that are not constant. `scale`, `zero`: those of A.
  Right plan_right(const Call& call, Program& program, gpu::IntegerLines lines, Ref scale, Ref zero) const {
    const ElementType type = call.input(in_[kB]).type;
    lines.is_signed = type == ElementType::kInt8;
    Right right;
    right.columns_problem = describe_columns(call, lines);
    right.has_zeros = lines_ != nullptr ? has_zeros_ : call.has_input(in_[kBZero]) || !lines.is_signed;
    Ref sums;
    if (lines_ != nullptr) {
      right.lines = Ref::held(lines_.get());
      sums = Ref::held(static_cast<char*>(lines_.get()) + sums_at_);
    } else {
      right.lines = program.reserve(lines.packed_bytes());
      sums = program.reserve(lines.sum_bytes());
      program.launch(gpu::integer_lines_plan(lines), {Ref::input(in_[kB])}, {right.lines, sums});
    }
    if (columns_ != nullptr) {
      right.columns = Ref::held(columns_.get());
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

  gpu::IntegerColumnsProblem describe_columns(const Call& call, const gpu::IntegerLines& lines) const {
    gpu::IntegerColumnsProblem p;
    p.matrices = lines.matrices;
    p.columns = lines.lines;
    p.K = lines.K * lines.taps;
    p.left = in_.dynamic() ? ElementType::kUint8 : call.inputs[in_[kA]].type;
    p.right = call.input(in_[kB]).type;
    p.y = type_of_y(call);
    p.left_zero.given = in_.dynamic() || call.has_input(in_[kAZero]);
    p.right_zero = {call.has_input(in_[kBZero]),
                    is_many(call, in_[kBZero], p.columns, "the zero point of B")};
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

  struct Scaled {
    Ref sums, left, right, y, bias;
  };
  void add_scales(const Call& call, Program& program, ScaleProblem& p, const Scaled& refs) const {
    require_one(call, in_[kYScale], "the scale of Y");
    require_one(call, in_[kYZero], "the zero point of Y");
    if (call.has_input(in_[kYScale])) p.quantized = type_of_y(call);
    p.has_zero = call.has_input(in_[kYZero]);
    p.act = act_;
    program.launch(gpu::scale_products_plan(p),
                   {refs.sums, refs.left, refs.right, input_or_none(call, in_[kYScale]),
                    input_or_none(call, in_[kYZero]), refs.bias},
                   {refs.y});
  }

  ElementType type_of_y(const Call& call) const {
    if (in_[kBScale] == kNone) return ElementType::kInt32;
    if (!call.has_input(in_[kYScale])) return ElementType::kFloat;
    return call.has_input(in_[kYZero]) ? call.input(in_[kYZero]).type : call.inputs[in_[kA]].type;
  }

  Operands in_;

 private:
  float alpha_;
  bool transpose_a_, transpose_b_;
  Activation act_;
  std::shared_ptr<void> lines_, columns_;  // of constant inputs; lines_: packed lines of B, then their sums
  int64_t sums_at_ = 0;                    // offset of the sums in lines_
  bool has_zeros_ = true;                  // of lines_
};

// A is X and B is W.
class IntegerConv final : public IntegerProduct {
 public:
  // `last`: X, Y and W are in channels last. With the attribute channels_last only X and Y are.
  IntegerConv(const Node& node, gpu::Device& device, Operands in, bool last = false)
      : IntegerProduct(node, device, in),
        window_(node),
        groups_(node.get_int("group", 1)),
        last_(last || node.get_bool("channels_last")),
        last_filters_(last) {}

  void prepare(const Node& node) override {
    const auto w = node.constant(in_[kB]);
    if (!w || !is_byte(w->type) || w->shape.rank() < 3 || w->shape.elements() == 0) return;
    const ElementType type = w->type;
    if (has_zero_points(device_, node, in_[kBZero], type)) return;
    const Shape s = last_filters_ ? channels_first(w->shape) : w->shape;
    gpu::IntegerLines lines;
    lines.lines = s[0];
    lines.K = s[1];
    lines.taps = s.elements(2);
    lines.taps_first = last_filters_;
    if (groups_ == 1) return prepare_right(node, lines);
    if (s[0] != groups_ || s[1] != 1) return;
    // A row for each tap, with an element of each channel.
    gpu::IntegerLines rows;
    rows.lines = lines.taps;
    rows.K = lines.lines;
    rows.across = true;
    prepare_right(node, lines, &rows);
  }

 private:
  void plan(Call& call, Program& program) const override {
    const Shape &x = call.input(in_[kA]).shape, &w = call.input(in_[kB]).shape;
    ConvolutionProblem p;
    const Shape shape = place(last_ ? channels_first(x) : x, last_filters_ ? channels_first(w) : w, p);
    const Ref y = set_output(call, 0, last_ ? channels_last(shape) : shape, type_of_y(call));
    require_one(call, in_[kAScale], "the scale of X");
    require_one(call, in_[kAZero], "the zero point of X");
    if (call.has_input(in_[kBias]) && call.input(in_[kBias]).shape.elements() != p.y_channels()) {
      throw Error("B ", call.input(in_[kBias]).shape, " does not have one element for each output channel");
    }
    const bool depthwise = gpu::refuse_integer_depthwise(p) == nullptr;
    const bool supported = depthwise || gpu::refuse_integer_conv(p, device_.facts()) == nullptr;
    if (supported && is_prepared() && call.aligned() && shape.elements() > 0 && x.elements() > 0) {
      plan_last(call, program, p, depthwise, y);
    } else {
      plan_first(call, program, p, y);
    }
  }

  // Plans a convolution in channels last. X and Y in channels first are transposed.
  void plan_last(const Call& call, Program& program, const ConvolutionProblem& p, bool depthwise,
                 Ref y) const {
    const int64_t C = p.x_channels(), filters = p.y_channels();
    gpu::IntegerLines lines;
    lines.lines = filters;
    lines.K = p.C;
    lines.taps = p.taps();
    const Right right =
        plan_right(call, program, lines, input_or_none(call, in_[kAScale]), input_or_none(call, in_[kAZero]));
    Ref x = Ref::input(in_[kA]);
    if (!last_ && depthwise) {
      x = program.reserve(p.N * C * p.in_size());
      swap_axes(call, program, {p.N, C, p.in_size()}, 1, Ref::input(in_[kA]), x);
    } else if (!last_ || (C % 16 != 0 && !depthwise)) {
      gpu::IntegerLines pixels;
      pixels.matrices = last_ ? 1 : p.N;
      pixels.lines = last_ ? p.N * p.in_size() : p.in_size();
      pixels.K = C;
      pixels.across = !last_;
      pixels.is_signed = true;  // keeps the elements
      x = program.reserve(pixels.packed_bytes());
      program.launch(gpu::integer_lines_plan(pixels), {Ref::input(in_[kA])}, {x, Ref()});
    }
    const int64_t bytes = bytes_of(type_of_y(call));
    const Ref result = last_ ? y : program.reserve(p.N * p.out_size() * filters * bytes);
    program.launch(depthwise ? gpu::integer_depthwise_plan(p, right.columns_problem)
                             : gpu::integer_conv_plan(p, right.columns_problem, device_.facts()),
                   {x, right.lines, right.columns}, {result});
    if (!last_) swap_axes(call, program, {p.N, p.out_size(), filters}, bytes, result, y);
  }

  // Plans a convolution in channels first. Tensors in channels last are transposed.
  void plan_first(const Call& call, Program& program, const ConvolutionProblem& p, Ref y) const {
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

  // Swaps the last two axes of `from`.
  static void swap_axes(const Call& call, Program& program, const Shape& shape, int64_t bytes, Ref from,
                        Ref to) {
    if (shape.elements() == 0) return;
    program.launch(gpu::strided_copy_plan(gpu::permutation(shape, {0, 2, 1}, bytes), call.aligned()), {from},
                   {to});
  }

  // Return the shape of any rank with its channels moved.
  static Shape channels_first(const Shape& last) {
    Shape first = last;
    for (size_t d = 2; d < last.rank(); ++d) first[d] = last[d - 1];
    if (last.rank() > 1) first[1] = last[last.rank() - 1];
    return first;
  }
  static Shape channels_last(const Shape& first) {
    Shape last = first;
    for (size_t d = 1; d + 1 < first.rank(); ++d) last[d] = first[d + 1];
    last[first.rank() - 1] = first[1];
    return last;
  }

  // Sets the problem, and returns the shape of Y. All shapes are in channels first.
  Shape place(const Shape& x, const Shape& w, ConvolutionProblem& p) const {
    const size_t axes = x.rank() - 2;
    throw_if(x.rank() < 3 || axes > gpu::kSpatialAxes, "X must have one to three spatial axes");
    throw_if(w.rank() != x.rank(), "X ", x, " and W ", w, " differ in rank");
    throw_if(groups_ < 1 || w[0] % groups_ != 0, "W ", w, " does not divide into the groups");
    p.groups = groups_;
    p.C = w[1];
    p.M = w[0] / groups_;
    return window_.fit(x, w, p,
                       [this](ConvolutionProblem& to, size_t d, size_t i) { window_.place(to, d, i); });
  }

  Window window_;
  int64_t groups_;
  bool last_, last_filters_;
};

std::string refuse_integers(const Node& node, const Operands& in) {
  const ElementType a = node.inputs[in[kA]].type, b = node.inputs[in[kB]].type;
  if (in.dynamic() ? a != ElementType::kFloat : !is_byte(a)) return no_kernel(a);
  if (!is_byte(b)) return no_kernel(b);
  if ((node.has_input(in[kAZero]) && node.inputs[in[kAZero]].type != a) ||
      (node.has_input(in[kBZero]) && node.inputs[in[kBZero]].type != b)) {
    return "elements and zero point of two types";
  }
  if (node.has_input(in[kYZero]) && !is_byte(node.inputs[in[kYZero]].type)) return "only to int8 and uint8";
  for (const size_t scale : {in[kAScale], in[kBScale], in[kYScale]}) {
    if (node.has_input(scale) && node.inputs[scale].type != ElementType::kFloat)
      return "only scales of float";
  }
  const ElementType bias = in.has_integer_bias() ? ElementType::kInt32 : ElementType::kFloat;
  if (node.has_input(in[kBias]) && node.inputs[in[kBias]].type != bias) return "a bias of another type";
  for (const size_t i : {in[kAScale], in[kAZero]}) {
    if (node.has_input(i) && node.inputs[i].shape && node.inputs[i].shape->elements() > 1) {
      return "a scale or zero point for each row of the first operand";
    }
  }
  return "";
}

std::string refuse_wide(const Node& node) {
  for (const Value& x : node.inputs) {
    if (x.type != ElementType::kInt16) return no_kernel(x.type);
  }
  return "";
}

// Channels last is the layout of the kernels on the matrix units.
Layout layout_of(const Node& node, const Operands& in) {
  const auto& w = node.inputs[in[kB]].shape;
  const int64_t groups = node.get_int("group", 1);
  const bool known = w && w->rank() == kLayoutRank && !node.get_bool("channels_last");
  return known && (groups == 1 || ((*w)[1] == 1 && (*w)[0] == groups)) ? Layout::kLast : Layout::kFirst;
}

}  // namespace

void add_integer_product(Kernels& kernels) {
  const auto refuse = [](Registration& r, const Operands& in) {
    r.refused([&in](const Node& node) { return refuse_integers(node, in); });
  };
  refuse(kernels.add_onnx("MatMulInteger", 10, 10, kernel<IntegerProduct>, kMatMulInteger), kMatMulInteger);
  refuse(kernels.add_onnx("QLinearMatMul", 10, 21, kernel<IntegerProduct>, kQLinearMatMul), kQLinearMatMul);
  refuse(kernels.add_onnx("ConvInteger", 10, 10, kernel<IntegerConv>, kMatMulInteger), kMatMulInteger);
  const auto convolution = [&](Registration& r) {
    refuse(r, kQLinearConv);
    r.with_layout([](const Node& node) { return layout_of(node, kQLinearConv); }).with_byte_layouts();
    kernels.has_channels_last(kernel<IntegerConv>, kQLinearConv);
  };
  convolution(kernels.add_onnx("QLinearConv", 10, 10, kernel<IntegerConv>, kQLinearConv));
  refuse(kernels.add_microsoft("MatMulIntegerToFloat", kernel<IntegerProduct>, kMatMulIntegerToFloat),
         kMatMulIntegerToFloat);
  refuse(kernels.add_microsoft("DynamicQuantizeMatMul", kernel<IntegerProduct>, kDynamicQuantizeMatMul),
         kDynamicQuantizeMatMul);
  refuse(kernels.add_microsoft("QGemm", kernel<IntegerProduct>, kQGemm), kQGemm);
  kernels.add_microsoft("MatMulInteger16", kernel<IntegerProduct>, kMatMulInteger16)
      .refused(refuse_wide)
      .takes_rare_types();
  convolution(kernels.add_microsoft("QLinearConv", kernel<IntegerConv>, kQLinearConv));
}

}  // namespace graphopt
