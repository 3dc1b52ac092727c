// MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, and ONNX Runtime's own products of 8-bit numbers.
#include "operators/integer_product/op.h"

#include <algorithm>

#include "blocks/gpu/walk_plan.h"
#include "operators/matmul/product.h"
#include "operators/quantize/dynamic.h"
#include "operators/room.h"
#include "operators/window.h"

namespace graphopt {
namespace {

using gpu::IntegerProblem;
using gpu::ScaleProblem;

constexpr size_t kNone = SIZE_MAX;

// Which input is what; kNone: the operator has none.
struct Operands {
  size_t a = 0, b = 1, a_scale = kNone, b_scale = kNone, a_zero = kNone, b_zero = kNone, y_scale = kNone,
         y_zero = kNone, bias = kNone;
  bool dynamic = false;     // A is float and quantized first
  bool whole_bias = false;  // of the sums, in int32
};

constexpr Operands of_matmul_integer() {
  Operands o;
  o.a_zero = 2;
  o.b_zero = 3;
  return o;
}
// QLinearMatMul, and the first inputs of QLinearConv, whose A is X, and of QGemm.
constexpr Operands of_qlinear() {
  Operands o;
  o.a_scale = 1;
  o.a_zero = 2;
  o.b = 3;
  o.b_scale = 4;
  o.b_zero = 5;
  o.y_scale = 6;
  o.y_zero = 7;
  return o;
}
constexpr Operands of_qlinear_conv() {
  Operands o = of_qlinear();
  o.bias = 8;
  o.whole_bias = true;
  return o;
}
constexpr Operands of_qgemm() {
  Operands o = of_qlinear_conv();
  o.bias = 6;
  o.y_scale = 7;
  o.y_zero = 8;
  return o;
}
constexpr Operands of_matmul_integer_to_float() {
  Operands o;
  o.a_scale = 2;
  o.b_scale = 3;
  o.a_zero = 4;
  o.b_zero = 5;
  o.bias = 6;
  return o;
}
constexpr Operands of_dynamic_quantize_matmul() {
  Operands o;
  o.b_scale = 2;
  o.b_zero = 3;
  o.bias = 4;
  o.dynamic = true;
  return o;
}

bool is_byte(ElementType type) { return type == ElementType::kUint8 || type == ElementType::kInt8; }
bool has(const Node& node, size_t i) { return i != kNone && node.has_input(i); }
bool has(const Call& call, size_t i) { return i != kNone && call.has_input(i); }
Ref input_or_none(const Call& call, size_t i) { return has(call, i) ? Ref::input(i) : Ref(); }

// Whether a parameter has a number for each of `size` lines, or one for all. Throws Error for anything else.
bool is_many(const Call& call, size_t i, int64_t size, const char* what) {
  if (!has(call, i)) return false;
  const int64_t numbers = call.input(i).shape.elements();
  if (numbers == 1) return false;
  if (numbers == size) return true;
  throw Error(std::string(what) + " " + call.input(i).shape.text() + " has neither one number nor " +
              std::to_string(size));
}

// Throws Error unless there is one number.
void require_one(const Call& call, size_t i, const char* what) { (void)is_many(call, i, 1, what); }

// The products as they are, or scaled.
class IntegerProduct : public gpu::DeviceKernel {
 public:
  IntegerProduct(const Node& node, gpu::Device& device, Operands in)
      : DeviceKernel(device),
        in_(in),
        alpha_(node.find_float("alpha").value_or(1.0f)),
        transpose_a_(node.find_int("transA").value_or(0) != 0),
        transpose_b_(node.find_int("transB").value_or(0) != 0) {}

 private:
  void plan(Call& call, Program& program) const override {
    auto [p, shape] = matmul_of(call.input(in_.a).shape, call.input(in_.b).shape, transpose_a_, transpose_b_);
    const Ref y = set_output(call, 0, shape, type_of_y(call));
    Ref a = Ref::input(in_.a), a_scale = input_or_none(call, in_.a_scale),
        a_zero = input_or_none(call, in_.a_zero);
    if (in_.dynamic) {
      const Shape& x = call.input(in_.a).shape;
      a = program.reserve(x.elements());
      a_scale = program.reserve(bytes_of(ElementType::kFloat));
      a_zero = program.reserve(1);
      quantize_dynamically(program, x, call.aligned(), Ref::input(in_.a), a, a_scale, a_zero);
    }
    require_one(call, in_.a_scale, "the scale of A");
    require_one(call, in_.a_zero, "the zero point of A");
    IntegerProblem numbers;
    numbers.left = in_.dynamic ? ElementType::kUint8 : call.input(in_.a).type;
    numbers.right = call.input(in_.b).type;
    numbers.left_zero.given = in_.dynamic || has(call, in_.a_zero);
    numbers.right_zero = {has(call, in_.b_zero), is_many(call, in_.b_zero, p.N, "the zero point of B")};
    Ref bias;
    if (in_.whole_bias && has(call, in_.bias)) {
      bias = Ref::input(in_.bias);
      const auto strides = gpu::broadcast(call.input(in_.bias).shape, {p.M, p.N});
      numbers.has_bias = true;
      numbers.bias_m = strides[0];
      numbers.bias_n = strides[1];
    }
    const bool scaled = in_.b_scale != kNone;
    ScaleProblem scales;
    scales.outer = p.batch.elements();
    scales.M = p.M;
    scales.N = p.N;
    const Ref sums = scaled ? program.reserve(scales.outer * p.M * p.N * bytes_of(ElementType::kInt32)) : y;
    program.launch(gpu::integer_product_plan(p, numbers),
                   {a, Ref::input(in_.b), a_zero, input_or_none(call, in_.b_zero), bias}, {sums});
    if (!scaled) return;
    scales.right_many = is_many(call, in_.b_scale, p.N, "the scale of B");
    scales.alpha = alpha_;
    Ref added;
    if (!in_.whole_bias && has(call, in_.bias)) {
      if (call.input(in_.bias).shape.elements() != p.N) throw Error("there must be a bias for each column");
      added = Ref::input(in_.bias);
      scales.has_bias = true;
    }
    add_scales(call, program, scales, {sums, a_scale, Ref::input(in_.b_scale), y, added});
  }

 protected:
  struct Scaled {
    Ref sums, left, right, y, bias;
  };
  void add_scales(const Call& call, Program& program, ScaleProblem& p, const Scaled& refs) const {
    require_one(call, in_.y_scale, "the scale of Y");
    require_one(call, in_.y_zero, "the zero point of Y");
    if (has(call, in_.y_scale)) p.quantized = type_of_y(call);
    p.has_zero = has(call, in_.y_zero);
    program.launch(gpu::scale_products_plan(p),
                   {refs.sums, refs.left, refs.right, input_or_none(call, in_.y_scale),
                    input_or_none(call, in_.y_zero), refs.bias},
                   {refs.y});
  }

  ElementType type_of_y(const Call& call) const {
    if (in_.b_scale == kNone) return ElementType::kInt32;
    if (!has(call, in_.y_scale)) return ElementType::kFloat;
    return has(call, in_.y_zero) ? call.input(in_.y_zero).type : call.input(in_.a).type;
  }

  Operands in_;

 private:
  float alpha_;
  bool transpose_a_, transpose_b_;
};

// A is X, B is W.
class IntegerConv final : public IntegerProduct {
 public:
  IntegerConv(const Node& node, gpu::Device& device, Operands in)
      : IntegerProduct(node, device, in), window_(node), groups_(node.find_int("group").value_or(1)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Shape &x = call.input(in_.a).shape, &w = call.input(in_.b).shape;
    ConvolutionProblem p;
    const Shape shape = place(x, w, p);
    const int64_t filters = p.y_channels();
    const Ref y = set_output(call, 0, shape, type_of_y(call));
    require_one(call, in_.a_scale, "the scale of X");
    require_one(call, in_.a_zero, "the zero point of X");
    IntegerProblem numbers;
    numbers.left = call.input(in_.b).type;
    numbers.right = call.input(in_.a).type;
    numbers.left_zero = {has(call, in_.b_zero), is_many(call, in_.b_zero, filters, "the zero point of W")};
    numbers.right_zero.given = has(call, in_.a_zero);
    numbers.has_bias = has(call, in_.bias);
    if (numbers.has_bias && call.input(in_.bias).shape.elements() != filters) {
      throw Error("B " + call.input(in_.bias).shape.text() +
                  " does not have one number for each output channel");
    }
    const bool scaled = in_.b_scale != kNone;
    const Ref sums = scaled ? program.reserve(shape.elements() * bytes_of(ElementType::kInt32)) : y;
    program.launch(gpu::integer_window_plan(p, numbers),
                   {Ref::input(in_.b), Ref::input(in_.a), input_or_none(call, in_.b_zero),
                    input_or_none(call, in_.a_zero), input_or_none(call, in_.bias)},
                   {sums});
    if (!scaled) return;
    ScaleProblem scales;
    scales.outer = p.N;
    scales.M = filters;
    scales.N = p.out_size();
    scales.left_many = is_many(call, in_.b_scale, filters, "the scale of W");
    add_scales(call, program, scales, {sums, Ref::input(in_.b_scale), Ref::input(in_.a_scale), y, Ref()});
  }

  // Sets the problem, and returns the shape of Y.
  Shape place(const Shape& x, const Shape& w, ConvolutionProblem& p) const {
    const size_t axes = x.rank() - 2;
    if (x.rank() < 3 || axes > gpu::kSpatialAxes) throw Error("X must have one to three spatial axes");
    if (w.rank() != x.rank()) throw Error("X " + x.text() + " and W " + w.text() + " differ in rank");
    if (groups_ < 1 || w[0] % groups_ != 0) throw Error("W " + w.text() + " does not divide into the groups");
    p.groups = groups_;
    p.C = w[1];
    p.M = w[0] / groups_;
    return window_.fit(x, w, p,
                       [this](ConvolutionProblem& to, size_t d, size_t i) { window_.place(to, d, i); });
  }

  Window window_;
  int64_t groups_;
};

std::string refuse_integers(const Node& node, const Operands& in) {
  const auto no_kernel = [](ElementType type) {
    return std::string("no kernel for ") + element_type_name(type);
  };
  const ElementType a = node.inputs[in.a].type, b = node.inputs[in.b].type;
  if (in.dynamic ? a != ElementType::kFloat : !is_byte(a)) return no_kernel(a);
  if (!is_byte(b)) return no_kernel(b);
  if ((has(node, in.a_zero) && node.inputs[in.a_zero].type != a) ||
      (has(node, in.b_zero) && node.inputs[in.b_zero].type != b)) {
    return "numbers and their zero point of two types";
  }
  if (has(node, in.y_zero) && !is_byte(node.inputs[in.y_zero].type)) return "only to int8 and uint8";
  for (const size_t scale : {in.a_scale, in.b_scale, in.y_scale}) {
    if (has(node, scale) && node.inputs[scale].type != ElementType::kFloat) return "only scales of float";
  }
  const ElementType bias = in.whole_bias ? ElementType::kInt32 : ElementType::kFloat;
  if (has(node, in.bias) && node.inputs[in.bias].type != bias) return "a bias of another type";
  for (const size_t i : {in.a_scale, in.a_zero}) {
    if (has(node, i) && node.inputs[i].shape && node.inputs[i].shape->elements() > 1) {
      return "a scale or zero point for each row of the first operand";
    }
  }
  return "";
}

std::string refuse_windows(const Node& node, const Operands& in) {
  if (node.find_int("channels_last").value_or(0) != 0) return "channels last";
  return refuse_integers(node, in);
}

}  // namespace

void add_integer_product(Kernels& kernels) {
  const auto add = [](Registration& r, Operands in, std::string (*why)(const Node&, const Operands&)) {
    r.refused([in, why](const Node& node) { return why(node, in); });
  };
  const auto product = [&](Registration& r, Operands in) { add(r, in, refuse_integers); };
  product(kernels.add_onnx<IntegerProduct>("MatMulInteger", 10, 10, of_matmul_integer()),
          of_matmul_integer());
  product(kernels.add_onnx<IntegerProduct>("QLinearMatMul", 10, 21, of_qlinear()), of_qlinear());
  add(kernels.add_onnx<IntegerConv>("ConvInteger", 10, 10, of_matmul_integer()), of_matmul_integer(),
      refuse_windows);
  add(kernels.add_onnx<IntegerConv>("QLinearConv", 10, 10, of_qlinear_conv()), of_qlinear_conv(),
      refuse_windows);
  product(kernels.add_microsoft<IntegerProduct>("MatMulIntegerToFloat", of_matmul_integer_to_float()),
          of_matmul_integer_to_float());
  product(kernels.add_microsoft<IntegerProduct>("DynamicQuantizeMatMul", of_dynamic_quantize_matmul()),
          of_dynamic_quantize_matmul());
  product(kernels.add_microsoft<IntegerProduct>("QGemm", of_qgemm()), of_qgemm());
  add(kernels.add_microsoft<IntegerConv>("QLinearConv", of_qlinear_conv()), of_qlinear_conv(),
      refuse_windows);
}

}  // namespace graphopt
