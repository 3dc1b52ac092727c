// RotaryEmbedding of ONNX Runtime.
#include "operators/rotary/op.h"

#include "operators/room.h"

namespace graphopt {
namespace {

class RotaryEmbedding final : public gpu::DeviceKernel {
 public:
  RotaryEmbedding(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        interleaved_(node.find_int("interleaved").value_or(0) != 0),
        dim_(node.find_int("rotary_embedding_dim").value_or(0)),
        heads_(node.find_int("num_heads").value_or(0)) {}

 private:
  // Inputs x, position ids, cos, sin.
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &ids = call.input(1), &cos = call.input(2);
    const Shape& s = x.shape;
    if (s.rank() != 3 && s.rank() != 4) throw Error("the input must have rank 3 or 4");
    if (cos.shape.rank() != 2 || !(call.input(3).shape == cos.shape)) {
      throw Error("the caches must be matrices of one shape");
    }
    gpu::RotaryProblem p;
    p.B = s[0];
    p.positions = cos.shape[0];
    p.half = cos.shape[1];
    p.heads_first = s.rank() == 4;
    p.interleaved = interleaved_;
    if (p.heads_first) {
      p.N = s[1];
      p.S = s[2];
      p.H = s[3];
    } else {
      p.S = s[1];
      p.H = dim_ == 0 ? 2 * p.half : heads_ > 0 ? s[2] / heads_ : 0;
      if (p.H <= 0 || s[2] % p.H != 0) throw Error("the last axis is not whole heads");
      p.N = s[2] / p.H;
    }
    if (2 * p.half > p.H) throw Error("the caches turn more numbers than a head has");
    p.one_id = ids.shape.elements() == 1 && p.B * p.S != 1;
    if (!p.one_id && ids.shape.elements() != p.B * p.S) throw Error("a position for each token is needed");
    const Ref y = set_output(call, 0, s);
    program.launch(gpu::rotary_plan(p, is_half(x)),
                   {Ref::input(0), Ref::input(1), Ref::input(2), Ref::input(3)}, {y});
  }

  bool interleaved_;
  int64_t dim_, heads_;
};

std::string refuse_rotary(const Node& node) {
  if (node.find_int("is_packed_batching").value_or(0) != 0) return "packed batches";
  if (node.find_float("scale").value_or(1.0f) != 1.0f) return "a scale";
  if (!node.has_input(1) || node.inputs[1].type != ElementType::kInt64) return "positions that are not int64";
  return refuse_mixed_floats(node, {1});
}

}  // namespace

void add_rotary(Kernels& kernels) {
  kernels.add_microsoft<RotaryEmbedding>("RotaryEmbedding").refused(refuse_rotary);
}

}  // namespace graphopt
