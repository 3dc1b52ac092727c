// com.microsoft GatherBlockQuantized.
#include "operators/quantized/gather_block_quantized/op.h"

#include "operators/kernel_bases.h"
#include "operators/movement/gather/op.h"

namespace graphopt {
namespace {

enum : size_t { kData, kIndices, kScales, kZeroPoints };

// Elements of 2 and 4 bits in a uint8 tensor are packed along the last axis.
Planner plan_gather_block_quantized(const Node& node) {
  const int64_t gather_axis = node.get_int("gather_axis", 0), block_axis = node.get_int("quantize_axis", 1);
  const int64_t block = node.get_int("block_size", 128), bits = node.get_int("bits", 4);
  return [=](Call& call, Program& program) {
    const Tensor &data = call.input(kData), &index = call.input(kIndices), &scales = call.input(kScales);
    const bool bytes = data.type == ElementType::kUint8;
    gpu::GatherBlocksProblem p;
    p.bits = static_cast<int>(is_packed(data.type) ? 4 : bits);
    Shape x = data.shape;
    const size_t rank = x.rank();
    throw_if(rank == 0, "data is a scalar");
    if (bytes) x[rank - 1] *= 8 / p.bits;
    const size_t gathered_axis = axis_of(gather_axis, rank), axis = axis_of(block_axis, rank);
    throw_if(bytes && gathered_axis != 0, "gather_axis must be 0 for uint8");
    throw_if(bytes && p.bits < 8 && axis == 0, "gather_axis and quantize_axis must differ");
    std::tie(p.outer, p.size, p.inner) = split_at(x, gathered_axis);
    std::tie(p.q_outer, p.q_size, p.q_inner) = split_at(x, axis);
    Shape blocks = x;
    blocks[axis] = (x[axis] + block - 1) / block;
    throw_if(scales.shape != blocks, "the scales must have the shape ", blocks);
    p.block = block;
    p.is_signed = data.type == ElementType::kInt4;
    p.default_zero = bytes ? 1 << (p.bits - 1) : 0;
    p.zero_row = bytes ? blocks[rank - 1] : blocks.elements();
    p.has_zero = call.has_input(kZeroPoints);
    if (p.has_zero) {
      Shape zeros = blocks;
      if (bytes) zeros[rank - 1] = (zeros[rank - 1] * p.bits + 7) / 8;
      throw_if(call.input(kZeroPoints).shape != zeros, "the zero points must have the shape ", zeros);
    }
    p.indices = index.shape.elements();
    p.narrow = index.type == ElementType::kInt32;
    p.half = is_half(scales);
    const Ref y = set_output(call, 0, gathered(x, index.shape, gathered_axis), scales.type);
    program.launch(
        gpu::gather_block_quantized_plan(p, call.aligned()),
        {Ref::input(kData), Ref::input(kIndices), Ref::input(kScales), input_or_none(call, kZeroPoints)},
        {y});
  };
}

std::string refuse_gather_block_quantized(const Node& node) {
  const ElementType data = node.type();
  if (!is_packed(data) && data != ElementType::kUint8) return no_kernel(data);
  const int64_t bits = node.get_int("bits", 4), block = node.get_int("block_size", 128);
  if (data == ElementType::kUint8 && bits != 2 && bits != 4 && bits != 8)
    return std::to_string(bits) + " bits";
  if (block < 16 || block > INT32_MAX) return "a block size of " + std::to_string(block);
  if (!is_float(node.inputs[kScales].type)) return "only scales of float and float16";
  if (node.has_input(kZeroPoints) && node.inputs[kZeroPoints].type != data)
    return "data and zero points have different types";
  return "";
}

}  // namespace

void add_gather_block_quantized(Kernels& kernels) {
  kernels.add_microsoft("GatherBlockQuantized", plan_gather_block_quantized)
      .refused(refuse_gather_block_quantized)
      .accepts_packed_types();
}

}  // namespace graphopt
