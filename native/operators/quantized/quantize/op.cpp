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
  Ref ends[2];
  for (const bool most : {false, true}) {
    reduced.how = most ? gpu::Reduction::kMax : gpu::Reduction::kMin;
    ends[most] = program.reserve(bytes_of(ElementType::kFloat));
    program.launch(gpu::reduce_plan(reduced, aligned), {x}, {ends[most]});
  }
  program.launch(gpu::dynamic_scale_plan(), {ends[0], ends[1]}, {scale, zero});
  gpu::QuantizeProblem p;
  p.size = shape.elements();
  p.number = ElementType::kUint8;
  p.zero = true;
  program.launch(gpu::quantize_plan(p, aligned), {x, scale, zero}, {y});
}

namespace {

class DynamicQuantize final : public gpu::DeviceKernel {
 public:
  DynamicQuantize(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Shape& x = call.input(0).shape;
    const Ref y = set_output(call, 0, x, ElementType::kUint8);
    const Ref scale = set_output(call, 1, Shape(), ElementType::kFloat);
    const Ref zero = set_output(call, 2, Shape(), ElementType::kUint8);
    quantize_dynamically(program, x, call.aligned(), Ref::input(0), y, scale, zero);
  }
};

std::string refuse_dynamic(const Node& node) {
  const ElementType x = node.inputs[0].type;
  return x == ElementType::kFloat ? "" : no_kernel(x);
}

using gpu::Scales;

// Scale and zero point are inputs 1 and 2.
class Quantize final : public gpu::DeviceKernel {
 public:
  Quantize(const Node& node, gpu::Device& device, bool back)
      : DeviceKernel(device),
        axis_(node.find_int("axis").value_or(1)),
        block_(node.find_int("block_size").value_or(0)),
        output_type_(static_cast<ElementType>(node.find_int("output_dtype").value_or(0))),
        back_(back) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &scale = call.input(1);
    gpu::QuantizeProblem p;
    p.back = back_;
    p.half = scale.type == ElementType::kHalf;
    p.zero = call.has_input(2);
    // The runtime's own quantizer writes scales [1] beside zero points [].
    const auto is_one = [](const Shape& s) { return s.elements() == 1 && s.rank() <= 1; };
    if (p.zero && call.input(2).shape != scale.shape &&
        !(is_one(scale.shape) && is_one(call.input(2).shape))) {
      throw Error("scale " + scale.shape.text() + " and zero point " + call.input(2).shape.text() +
                  " differ");
    }
    p.size = x.shape.elements();
    const size_t rank = x.shape.rank();
    if (block_ > 0) {
      const size_t axis = split(x.shape, p);
      Shape wanted = x.shape;
      wanted[axis] = (wanted[axis] + block_ - 1) / block_;
      if (scale.shape != wanted) throw Error("the scale must have the shape " + wanted.text());
      p.scales = Scales::kBlocks;
      p.block = block_;
    } else if (!is_one(scale.shape)) {
      const size_t axis = split(x.shape, p);
      if (scale.shape.rank() != 1 || scale.shape[0] != x.shape[axis]) {
        throw Error("there must be one scale, or one for each place along the axis");
      }
      p.scales = Scales::kAxis;
    } else if (rank == 0) {
      p.size = 1;
    }
    p.number = back_ ? x.type : p.zero ? call.input(2).type : unsigned_unless_given();
    const Ref y = set_output(call, 0, x.shape, back_ ? scale.type : p.number);
    program.launch(gpu::quantize_plan(p, call.aligned()),
                   {Ref::input(0), Ref::input(1), Ref::input(p.zero ? 2 : 1)}, {y});
  }

  size_t split(const Shape& x, gpu::QuantizeProblem& p) const {
    const size_t axis = axis_of(axis_, x.rank());
    p.outer = x.elements(0, axis);
    p.size = x[axis];
    p.inner = x.elements(axis + 1);
    return axis;
  }

  ElementType unsigned_unless_given() const {
    return output_type_ == ElementType::kUndefined ? ElementType::kUint8 : output_type_;
  }

  int64_t axis_, block_;
  ElementType output_type_;
  bool back_;
};

// Those that QuantizeLinear writes.
bool is_narrow(ElementType type) { return is_packed(type) || (is_whole(type) && bytes_of(type) <= 2); }

std::string refuse_block(const Node& node) {
  const int64_t block = node.find_int("block_size").value_or(0);
  return block < 0 || block > INT32_MAX ? "a block of this size" : "";
}

std::string refuse_quantize(const Node& node) {
  const ElementType x = node.inputs[0].type;
  if (!is_float(x)) return no_kernel(x);
  if (node.inputs[1].type != x) return "data and scale of two types";
  const auto given = static_cast<ElementType>(node.find_int("output_dtype").value_or(0));
  if (node.has_input(2) ? !is_narrow(node.inputs[2].type)
                        : given != ElementType::kUndefined && !is_narrow(given)) {
    return "only to whole numbers of 4, 8 and 16 bits";
  }
  const auto precision = static_cast<ElementType>(node.find_int("precision").value_or(0));
  if (precision != ElementType::kUndefined && precision != ElementType::kFloat)
    return "another precision than float";
  return refuse_block(node);
}

std::string refuse_dequantize(const Node& node) {
  const ElementType x = node.inputs[0].type, scale = node.inputs[1].type;
  if (!is_narrow(x) && x != ElementType::kInt32) return no_kernel(x);
  if (!is_float(scale)) return "only scales of float and float16";
  if (node.has_input(2) && node.inputs[2].type != x) return "data and zero point of two types";
  const auto given = static_cast<ElementType>(node.find_int("output_dtype").value_or(0));
  if (given != ElementType::kUndefined && given != scale) return "a result of another type than the scale";
  return refuse_block(node);
}

}  // namespace

void add_quantize(Kernels& kernels) {
  kernels.add_onnx<Quantize>("QuantizeLinear", 10, 28, false)
      .refused(refuse_quantize)
      .takes_rare_types()
      .takes_packed_types();
  kernels.add_onnx<Quantize>("DequantizeLinear", 10, 28, true)
      .refused(refuse_dequantize)
      .takes_rare_types()
      .takes_packed_types();
  kernels.add_onnx<DynamicQuantize>("DynamicQuantizeLinear", 11, 11).refused(refuse_dynamic);
}

}  // namespace graphopt
