// MatMulNBits of ONNX Runtime.
#include "operators/matmul/matmul_nbits/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// Inputs A, B, scales, zero points, the block of each k, bias.
class MatMulNBits final : public gpu::DeviceKernel {
 public:
  MatMulNBits(const Node& node, gpu::Device& device) : DeviceKernel(device) {
    p_.K = node.get_int("K");
    p_.N = node.get_int("N");
    p_.bits = static_cast<int>(node.find_int("bits").value_or(4));
    p_.size = node.get_int("block_size");
  }

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &a = call.input(0), &b = call.input(1), &scales = call.input(2);
    gpu::NBitsProblem p = p_;
    if (a.shape.rank() == 0 || a.shape[a.shape.rank() - 1] != p.K) throw Error("A must have K columns");
    p.M = 1;  // the rows: where K is 0, they have the bias alone
    for (size_t d = 0; d + 1 < a.shape.rank(); ++d) p.M *= a.shape[d];
    const int64_t blocks = (p.K + p.size - 1) / p.size;
    const auto require = [](const Tensor& t, int64_t elements, const char* name) {
      if (t.shape.elements() == elements) return;
      throw Error(std::string(name) + " " + t.shape.text() + " must have " + std::to_string(elements) +
                  " elements");
    };
    require(b, p.N * blocks * p.size * p.bits / 8, "B");
    require(scales, p.N * blocks, "scales");
    if (call.has_input(3)) {
      p.has_points = true;
      p.packed_points = call.input(3).type == ElementType::kUint8;
      require(call.input(3), p.N * (p.packed_points ? (blocks * p.bits + 7) / 8 : blocks), "zero_points");
    }
    if (call.has_input(4)) {
      p.has_groups = true;
      if (call.input(4).shape.elements() < p.K) throw Error("g_idx must have K elements");
    }
    if (call.has_input(5)) {
      p.has_bias = true;
      require(call.input(5), p.N, "bias");
    }
    if (call.alignment < 4) throw Error("B must lie at a multiple of four bytes");
    Shape y = a.shape;
    y[y.rank() - 1] = p.N;
    const Ref out = set_output(call, 0, y);
    const auto given = [&](size_t i) { return call.has_input(i) ? Ref::input(i) : Ref(); };
    program.launch(gpu::matmul_nbits_plan(p, is_half(a), device_.facts().wave),
                   {Ref::input(0), Ref::input(1), Ref::input(2), given(3), given(4), given(5)}, {out});
  }

  gpu::NBitsProblem p_;
};

std::string refuse_matmul_nbits(const Node& node) {
  const int64_t bits = node.find_int("bits").value_or(4), size = node.find_int("block_size").value_or(0);
  if (bits != 2 && bits != 4 && bits != 8) return std::to_string(bits) + " bits";
  if (size < 16 || size % 16 != 0) return "blocks that are no multiple of 16";
  if (node.find_int("weight_prepacked").value_or(0) != 0) return "weights in the layout of another kernel";
  if (node.has_input(4) && node.inputs[4].type != ElementType::kInt32) return "g_idx is not int32";
  if (!node.has_input(1) || node.inputs[1].type != ElementType::kUint8) return "B is not uint8";
  const bool packed = node.has_input(3) && node.inputs[3].type == ElementType::kUint8;
  return refuse_mixed_floats(node, packed ? std::vector<size_t>{1, 3, 4} : std::vector<size_t>{1, 4});
}

}  // namespace

void add_matmul_nbits(Kernels& kernels) {
  kernels.add_microsoft<MatMulNBits>("MatMulNBits").refused(refuse_matmul_nbits);
}

}  // namespace graphopt
