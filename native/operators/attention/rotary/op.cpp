// FusedRotary[Interleaved]; RotaryEmbedding of ONNX and of ONNX Runtime.
#include "operators/attention/rotary/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {
std::vector<FusedRotaryOp> FusedRotaryOp::all() {
  std::vector<FusedRotaryOp> ops(2);
  ops[1].interleaved_ = true;
  return ops;
}

void FusedRotaryOp::read(const Node& node) {
  slice_ = InputSlice::read(node, 0);
  perm_ = node.get_ints("perm");
  const size_t rank = perm_.size();
  throw_if(rank < 2 || rank > 4 || !is_permutation(perm_) || static_cast<size_t>(perm_.back()) != rank - 1,
           "attribute 'perm' must permute 2, 3 or 4 axes and keep the last one");
}

void FusedRotaryOp::require_rank(size_t rank) const {
  throw_if(rank != perm_.size(), "the rank of X differs from the length of attribute 'perm'");
}

Shape FusedRotaryOp::output(const Shapes& inputs) const {
  const Shape x = strided(inputs[0], slice_).shape;
  Shape y(perm_.size());
  for (size_t i = 0; i < perm_.size(); ++i) y[i] = x[static_cast<size_t>(perm_[i])];
  return y;
}

FusedRotaryProblem FusedRotaryOp::problem(const Shapes& inputs) const {
  const auto [x, x_strides, x_offset] = strided(inputs[0], slice_);
  require_rank(x.rank());
  const Shape y = output(inputs);
  const size_t outer = y.rank() - 1;
  FusedRotaryProblem p;
  p.D = y[outer];
  p.x_offset = x_offset;
  throw_if(x_strides[outer] != 1, "the elements of a head must be adjacent");
  p.interleaved = interleaved_;
  throw_if(p.D % 2 != 0, "the last axis must have an even size, got ", x);
  for (size_t i = 0; i < outer; ++i) {
    p.n[3 - outer + i] = y[i];
    p.x[3 - outer + i] = x_strides[static_cast<size_t>(perm_[i])];
  }
  const auto set_strides = [&](const char* name, const Shape& angles, std::array<int64_t, 3>& strides) {
    const auto refuse = [&] { throw Error(name, " ", angles, " does not match ", y); };
    if (angles.rank() < 1 || angles.rank() > y.rank() || angles[angles.rank() - 1] != p.D) refuse();
    for (size_t i = 0; i + 1 < angles.rank(); ++i) {
      const size_t axis = y.rank() - angles.rank() + i;
      if (angles[i] != 1 && angles[i] != y[axis]) refuse();
      strides[3 - outer + axis] = angles[i] == 1 ? 0 : angles.elements(i + 1);
    }
  };
  set_strides("cos", inputs[1], p.cos);
  set_strides("sin", inputs[2], p.sin);
  return p;
}

void FusedRotaryOp::infer(const ShapeInference& node) const {
  const SymbolicShape x = node.input(0);
  if (x.size() != perm_.size()) return;
  SymbolicShape y;
  for (const int64_t axis : perm_) y.push_back(x[static_cast<size_t>(axis)]);
  node.set_output(0, y);
}

namespace {

template <class T>
using FusedRotaryKernel =
    CpuKernelOf<FusedRotaryOp, T, 3, cpu::fused_rotary<T>, cpu::fused_rotary_workspace<T>>;

// Input indices of position_ids and of the caches. In ONNX position_ids is optional: without it, the caches have a row
// for each token.
struct RotaryInputs {
  size_t ids, cos, sin;
  bool needs_ids;
};
constexpr RotaryInputs kOfOnnx = {3, 1, 2, false}, kOfMicrosoft = {1, 2, 3, true};

Planner plan_rotary_embedding(const Node& node, RotaryInputs at) {
  const bool interleaved = node.get_bool("interleaved");
  const int64_t dim = node.get_int("rotary_embedding_dim", 0), heads = node.get_int("num_heads", 0);
  return [=](Call& call, Program& program) {
    const Tensor &x = call.input(0), &cos = call.input(at.cos);
    const Shape &s = x.shape, &angles = cos.shape;
    throw_if(s.rank() != 3 && s.rank() != 4, "the input must have rank 3 or 4");
    gpu::RotaryProblem p;
    p.B = s[0];
    p.has_ids = at.needs_ids || call.has_input(at.ids);
    throw_if(angles.rank() != (p.has_ids ? 2 : 3) || call.input(at.sin).shape != angles,
             "cos_cache and sin_cache must be ", p.has_ids ? "matrices" : "[B, S, half]", " of equal shapes");
    p.half = angles[angles.rank() - 1];
    p.positions = p.has_ids ? angles[0] : angles[0] * angles[1];
    p.heads_first = s.rank() == 4;
    p.interleaved = interleaved;
    if (p.heads_first) {
      p.N = s[1];
      p.S = s[2];
      p.H = s[3];
    } else {
      p.S = s[1];
      p.H = dim == 0 ? 2 * p.half : heads > 0 ? s[2] / heads : 0;
      throw_if(p.H <= 0 || s[2] % p.H != 0, "the last axis does not divide into heads");
      p.N = s[2] / p.H;
    }
    throw_if(2 * p.half > p.H, "cos_cache and sin_cache rotate more elements than a head has");
    if (p.has_ids) {
      const int64_t ids = call.input(at.ids).shape.elements();
      p.one_id = at.needs_ids && ids == 1 && p.B * p.S != 1;
      throw_if(!p.one_id && ids != p.B * p.S, "position_ids must have one element for each token");
    } else if (angles[0] != p.B || angles[1] != p.S) {
      throw Error("cos_cache and sin_cache must have one row for each token");
    }
    const Ref y = set_output(call, 0, s);
    program.launch(
        gpu::rotary_plan(p, is_half(x), call.aligned()),
        {Ref::input(0), p.has_ids ? Ref::input(at.ids) : Ref(), Ref::input(at.cos), Ref::input(at.sin)}, {y});
  };
}

std::string refuse_rotary(const Node& node) {
  if (node.get_bool("is_packed_batching")) return "packed batches";
  if (node.get_float("scale", 1.0f) != 1.0f) return "a scale";
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
  kernels.add_cpu<FusedRotaryOp, FusedRotaryKernel>();
  kernels.add_gpu<FusedRotaryOp, BuiltInGpuKernel<FusedRotaryOp, gpu::fused_rotary_plan>>(Where::kGpu,
                                                                                          Reuse::kNone, 1);
  kernels.add_microsoft("RotaryEmbedding", plan_rotary_embedding, kOfMicrosoft).refused(refuse_rotary);
  kernels.add_onnx("RotaryEmbedding", 23, 23, plan_rotary_embedding, kOfOnnx).refused(refuse_onnx_rotary);
}

}  // namespace graphopt
