// com.microsoft MatMulNBits.
#include "operators/matmul/matmul_nbits/op.h"

#include "operators/kernel_bases.h"
#include "operators/matmul/matmul/op.h"

namespace graphopt {
namespace {

// Inputs A, B, scales, zero_points, g_idx (the block of each k), bias.
Planner plan_mat_mul_nbits(const Node& node) {
  gpu::NBitsProblem of_node;
  of_node.K = node.get_int("K");
  of_node.N = node.get_int("N");
  of_node.bits = static_cast<int>(node.get_int("bits", 4));
  of_node.size = node.get_int("block_size");
  return [=](Call& call, Program& program) {
    const Tensor &a = call.input(0), &b = call.input(1), &scales = call.input(2);
    gpu::NBitsProblem p = of_node;
    throw_if(a.shape.rank() == 0 || a.shape[a.shape.rank() - 1] != p.K, "A must have K columns");
    p.M = 1;  // number of rows; with K = 0 each row of Y is the bias
    for (size_t d = 0; d + 1 < a.shape.rank(); ++d) p.M *= a.shape[d];
    const int64_t blocks = (p.K + p.size - 1) / p.size;
    const auto require = [](const Tensor& t, int64_t elements, const char* name) {
      throw_if(t.shape.elements() != elements, name, " ", t.shape, " must have ", elements, " elements");
    };
    require(b, p.N * blocks * p.size * p.bits / 8, "B");
    require(scales, p.N * blocks, "scales");
    if (call.has_input(3)) {
      p.has_zero_points = true;
      p.packed_zero_points = call.input(3).type == ElementType::kUint8;
      require(call.input(3), p.N * (p.packed_zero_points ? (blocks * p.bits + 7) / 8 : blocks),
              "zero_points");
    }
    if (call.has_input(4)) {
      p.has_g_idx = true;
      throw_if(call.input(4).shape.elements() < p.K, "g_idx must have at least K elements");
    }
    if (call.has_input(5)) {
      p.has_bias = true;
      require(call.input(5), p.N, "bias");
    }
    throw_if(call.alignment < 4, "the tensors must be aligned to four bytes");
    Shape y = a.shape;
    y[y.rank() - 1] = p.N;
    const Ref out = set_output(call, 0, y);
    const bool half = is_half(a);
    const gpu::DeviceFacts& device = program.device().facts();
    if (gpu::wants_dequantized(p, half, call.aligned(), device)) {
      const Ref weights = program.reserve(p.N * p.K * bytes_of(a.type));
      program.launch(gpu::dequantize_nbits_plan(p, half, call.aligned()),
                     {Ref(), Ref::input(1), Ref::input(2), input_or_none(call, 3), input_or_none(call, 4)},
                     {weights});
      gpu::GemmProblem gemm;
      gemm.M = p.M;
      gemm.N = p.N;
      gemm.K = p.K;
      gemm.transpose_b = true;
      gemm.has_bias = p.has_bias;
      program.launch(gpu::gemm_plan(gemm, half, call.aligned(), device),
                     {Ref::input(0), weights, input_or_none(call, 5)}, {out});
      return;
    }
    program.launch(gpu::matmul_nbits_plan(p, half, call.aligned(), device),
                   {Ref::input(0), Ref::input(1), Ref::input(2), input_or_none(call, 3),
                    input_or_none(call, 4), input_or_none(call, 5)},
                   {out});
  };
}

std::string refuse_matmul_nbits(const Node& node) {
  const int64_t bits = node.get_int("bits", 4), size = node.get_int("block_size", 0);
  if (bits != 2 && bits != 4 && bits != 8) return std::to_string(bits) + " bits";
  if (size < 16 || size % 16 != 0) return "block_size is not a positive multiple of 16";
  if (node.get_bool("weight_prepacked")) return "weight_prepacked";
  if (node.has_input(4) && node.inputs[4].type != ElementType::kInt32) return "g_idx is not int32";
  if (!node.has_input(1) || node.inputs[1].type != ElementType::kUint8) return "B is not uint8";
  const bool packed = node.has_input(3) && node.inputs[3].type == ElementType::kUint8;
  return refuse_mixed_floats(node, packed ? std::vector<size_t>{1, 3, 4} : std::vector<size_t>{1, 4});
}

}  // namespace

void add_matmul_nbits(Kernels& kernels) {
  kernels.add_microsoft("MatMulNBits", plan_mat_mul_nbits).refused(refuse_matmul_nbits);
}

}  // namespace graphopt
