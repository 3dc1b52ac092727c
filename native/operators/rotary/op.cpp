// RotaryEmbedding of ONNX and of ONNX Runtime.
#include "operators/rotary/op.h"

#include "operators/room.h"

namespace graphopt {
namespace {

// Where a node has them. ONNX's ids may be left out: then the caches have the angles of each token.
struct RotaryInputs {
  size_t ids, cos, sin;
  bool needs_ids;
};
constexpr RotaryInputs kOfOnnx = {3, 1, 2, false}, kOfMicrosoft = {1, 2, 3, true};

class RotaryEmbedding final : public gpu::DeviceKernel {
 public:
  RotaryEmbedding(const Node& node, gpu::Device& device, RotaryInputs at)
      : DeviceKernel(device),
        at_(at),
        interleaved_(node.find_int("interleaved").value_or(0) != 0),
        dim_(node.find_int("rotary_embedding_dim").value_or(0)),
        heads_(node.find_int("num_heads").value_or(0)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &cos = call.input(at_.cos);
    const Shape &s = x.shape, &angles = cos.shape;
    if (s.rank() != 3 && s.rank() != 4) throw Error("the input must have rank 3 or 4");
    gpu::RotaryProblem p;
    p.B = s[0];
    p.has_ids = at_.needs_ids || call.has_input(at_.ids);
    if (angles.rank() != (p.has_ids ? 2 : 3) || call.input(at_.sin).shape != angles) {
      throw Error("the caches must be " + std::string(p.has_ids ? "matrices" : "[B, S, half]") +
                  " of one shape");
    }
    p.half = angles[angles.rank() - 1];
    p.positions = p.has_ids ? angles[0] : angles[0] * angles[1];
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
    if (p.has_ids) {
      const int64_t ids = call.input(at_.ids).shape.elements();
      p.one_id = at_.needs_ids && ids == 1 && p.B * p.S != 1;
      if (!p.one_id && ids != p.B * p.S) throw Error("a position for each token is needed");
    } else if (angles[0] != p.B || angles[1] != p.S) {
      throw Error("the caches must have the angles of each token");
    }
    const Ref y = set_output(call, 0, s);
    program.launch(
        gpu::rotary_plan(p, is_half(x)),
        {Ref::input(0), p.has_ids ? Ref::input(at_.ids) : Ref(), Ref::input(at_.cos), Ref::input(at_.sin)},
        {y});
  }

  RotaryInputs at_;
  bool interleaved_;
  int64_t dim_, heads_;
};

std::string refuse_rotary(const Node& node) {
  if (node.find_int("is_packed_batching").value_or(0) != 0) return "packed batches";
  if (node.find_float("scale").value_or(1.0f) != 1.0f) return "a scale";
  if (!node.has_input(1) || node.inputs[1].type != ElementType::kInt64) return "positions that are not int64";
  return refuse_mixed_floats(node, {1});
}

std::string refuse_onnx_rotary(const Node& node) {
  if (node.has_input(kOfOnnx.ids) && node.inputs[kOfOnnx.ids].type != ElementType::kInt64) {
    return "positions that are not int64";
  }
  return refuse_mixed_floats(node, {kOfOnnx.ids});
}

}  // namespace

void add_rotary(Kernels& kernels) {
  kernels.add_microsoft<RotaryEmbedding>("RotaryEmbedding", kOfMicrosoft).refused(refuse_rotary);
  kernels.add_onnx<RotaryEmbedding>("RotaryEmbedding", 23, 23, kOfOnnx).refused(refuse_onnx_rotary);
}

}  // namespace graphopt
