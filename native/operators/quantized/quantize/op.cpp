// QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.
#include "operators/quantized/quantize/op.h"

#include "operators/kernel_bases.h"
#include "operators/quantized/quantize/dynamic.h"
#include "operators/reduction/reduction/op.h"

namespace graphopt {
void quantize_dynamically(Program& program, const Shape& shape, bool aligned, Ref x, Ref y, Ref scale,
                          Ref zero) {
  gpu::ReduceProblem reduced;
  reduced.x = {shape.elements()};
  reduced.reduced = {true};
  Ref range[2];  // minimum, maximum
  for (const bool most : {false, true}) {
    reduced.reduction = most ? gpu::Reduction::kMax : gpu::Reduction::kMin;
    range[most] = program.reserve(bytes_of(ElementType::kFloat));
    program.launch(gpu::reduce_plan(reduced, aligned), {x}, {range[most]});
  }
  program.launch(gpu::dynamic_scale_plan(), {range[0], range[1]}, {scale, zero});
  gpu::QuantizeProblem p;
  p.size = shape.elements();
  p.quantized = ElementType::kUint8;
  p.zero = true;
  program.launch(gpu::quantize_plan(p, aligned), {x, scale, zero}, {y});
}

namespace {

void plan_dynamic_quantize(Call& call, Program& program) {
  const Shape& x = call.input(0).shape;
  const Ref y = set_output(call, 0, x, ElementType::kUint8);
  const Ref scale = set_output(call, 1, Shape(), ElementType::kFloat);
  const Ref zero = set_output(call, 2, Shape(), ElementType::kUint8);
  quantize_dynamically(program, x, call.aligned(), Ref::input(0), y, scale, zero);
}

std::string refuse_dynamic(const Node& node) {
  const ElementType x = node.inputs[0].type;
  return x == ElementType::kFloat ? "" : no_kernel(x);
}

using gpu::Scales;

// Scale and zero point are inputs 1 and 2. `dequantizes`: DequantizeLinear.
Planner plan_quantize(const Node& node, bool dequantizes) {
  const int64_t given_axis = node.get_int("axis", 1), block = node.get_int("block_size", 0);
  const auto given_type = static_cast<ElementType>(node.get_int("output_dtype", 0));
  const ElementType type = given_type == ElementType::kUndefined ? ElementType::kUint8 : given_type;
  return [=](Call& call, Program& program) {
    const Tensor &x = call.input(0), &scale = call.input(1);
    gpu::QuantizeProblem p;
    p.dequantizes = dequantizes;
    p.half = scale.type == ElementType::kHalf;
    p.zero = call.has_input(2);
    // ONNX Runtime's quantizer writes scales of shape [1] with zero points of shape [].
    const auto is_one = [](const Shape& s) { return s.elements() == 1 && s.rank() <= 1; };
    if (p.zero) {
      const Shape& zero = call.input(2).shape;
      throw_if(zero != scale.shape && !(is_one(scale.shape) && is_one(zero)), "scale ", scale.shape,
               " and zero point ", zero, " have different shapes");
    }
    p.size = x.shape.elements();
    const auto split = [&] {
      const size_t axis = axis_of(given_axis, x.shape.rank());
      std::tie(p.outer, p.size, p.inner) = split_at(x.shape, axis);
      return axis;
    };
    if (block > 0) {
      const size_t axis = split();
      Shape wanted = x.shape;
      wanted[axis] = (wanted[axis] + block - 1) / block;
      throw_if(scale.shape != wanted, "the scale must have the shape ", wanted);
      p.scales = Scales::kBlocks;
      p.block = block;
    } else if (!is_one(scale.shape)) {
      const size_t axis = split();
      throw_if(scale.shape.rank() != 1 || scale.shape[0] != x.shape[axis],
               "there must be one scale, or one for each index of the axis");
      p.scales = Scales::kAxis;
    } else if (x.shape.rank() == 0) {
      p.size = 1;
    }
    p.quantized = dequantizes ? x.type : p.zero ? call.input(2).type : type;
    const Ref y = set_output(call, 0, x.shape, dequantizes ? scale.type : p.quantized);
    program.launch(gpu::quantize_plan(p, call.aligned()),
                   {Ref::input(0), Ref::input(1), Ref::input(p.zero ? 2 : 1)}, {y});
  };
}

// Whether QuantizeLinear can write this type.
bool is_narrow(ElementType type) { return is_packed(type) || (is_integer(type) && bytes_of(type) <= 2); }

std::string refuse_block(const Node& node) {
  const int64_t block = node.get_int("block_size", 0);
  return block < 0 || block > INT32_MAX ? "a block size of " + std::to_string(block) : "";
}

std::string refuse_quantize(const Node& node) {
  const ElementType x = node.inputs[0].type;
  if (!is_float(x)) return no_kernel(x);
  if (node.inputs[1].type != x) return "data and scale have different types";
  const auto given = static_cast<ElementType>(node.get_int("output_dtype", 0));
  if (node.has_input(2) ? !is_narrow(node.inputs[2].type)
                        : given != ElementType::kUndefined && !is_narrow(given)) {
    return "a result that is not an integer of 4, 8 or 16 bits";
  }
  const auto precision = static_cast<ElementType>(node.get_int("precision", 0));
  if (precision != ElementType::kUndefined && precision != ElementType::kFloat)
    return "a precision that is not float";
  return refuse_block(node);
}

std::string refuse_dequantize(const Node& node) {
  const ElementType x = node.inputs[0].type, scale = node.inputs[1].type;
  if (!is_narrow(x) && x != ElementType::kInt32) return no_kernel(x);
  if (!is_float(scale)) return "only scales of float and float16";
  if (node.has_input(2) && node.inputs[2].type != x) return "data and zero point have different types";
  const auto given = static_cast<ElementType>(node.get_int("output_dtype", 0));
  if (given != ElementType::kUndefined && given != scale) return "result and scale have different types";
  return refuse_block(node);
}

}  // namespace

void add_quantize(Kernels& kernels) {
  kernels.add_onnx("QuantizeLinear", 10, 28, plan_quantize, false)
      .refused(refuse_quantize)
      .accepts_all_numbers()
      .accepts_packed_types();
  kernels.add_onnx("DequantizeLinear", 10, 28, plan_quantize, true)
      .refused(refuse_dequantize)
      .accepts_all_numbers()
      .accepts_packed_types();
  kernels.add_onnx("DynamicQuantizeLinear", 11, 11, plan_dynamic_quantize).refused(refuse_dynamic);
}

}  // namespace graphopt
