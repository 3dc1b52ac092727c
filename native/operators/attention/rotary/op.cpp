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
  perm_ = node.get_ints("perm");
  const auto rank = static_cast<int64_t>(perm_.size());
  bool fits = rank >= 2 && rank <= 4;
  for (int64_t axis = 0; fits && axis < rank; ++axis) {
    fits = std::count(perm_.begin(), perm_.end(), axis) == 1;
  }
  if (!fits || perm_.back() != rank - 1) {
    throw Error("attribute 'perm' must permute 2, 3 or 4 axes and keep the last one");
  }
}

void FusedRotaryOp::require_rank(size_t rank) const {
  if (rank != perm_.size()) throw Error("X does not have the rank of its perm");
}

Shape FusedRotaryOp::output(const Shapes& inputs) const {
  Shape y(perm_.size());
  for (size_t i = 0; i < perm_.size(); ++i) y[i] = inputs[0][static_cast<size_t>(perm_[i])];
  return y;
}

FusedRotaryProblem FusedRotaryOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  require_rank(x.rank());
  const Shape y = output(inputs);
  const size_t outer = y.rank() - 1;
  FusedRotaryProblem p;
  p.D = y[outer];
  p.interleaved = interleaved_;
  if (p.D % 2 != 0) throw Error("the last axis must have pairs, got " + x.text());
  for (size_t i = 0; i < outer; ++i) {
    p.n[3 - outer + i] = y[i];
    p.x[3 - outer + i] = x.elements(static_cast<size_t>(perm_[i]) + 1);
  }
  const auto steps = [&](const char* name, const Shape& angles, std::array<int64_t, 3>& step) {
    const auto refuse = [&] {
      throw Error(std::string(name) + " " + angles.text() + " does not fit to " + y.text());
    };
    if (angles.rank() < 1 || angles.rank() > y.rank() || angles[angles.rank() - 1] != p.D) refuse();
    for (size_t i = 0; i + 1 < angles.rank(); ++i) {
      const size_t axis = y.rank() - angles.rank() + i;
      if (angles[i] != 1 && angles[i] != y[axis]) refuse();
      step[3 - outer + axis] = angles[i] == 1 ? 0 : angles.elements(i + 1);
    }
  };
  steps("cos", inputs[1], p.cos);
  steps("sin", inputs[2], p.sin);
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
    CpuKernelOfThree<FusedRotaryOp, T, cpu::fused_rotary<T>, cpu::fused_rotary_workspace<T>>;

void plan_own(GpuWork<FusedRotaryProblem>& work) {
  work.program.launch(gpu::fused_rotary_plan(work.p, work.half, work.call.aligned()), work.call);
}

constexpr Implementation<GpuWork<FusedRotaryProblem>> kImplementations[] = {
    {"a kernel of our own", take_all<GpuWork<FusedRotaryProblem>>, plan_own},
};

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
        gpu::rotary_plan(p, is_half(x), call.aligned()),
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
  kernels.add_cpu<FusedRotaryOp, FusedRotaryKernel>();
  kernels.add_gpu<FusedRotaryOp, GpuKernel<FusedRotaryOp, kImplementations>>(Where::kGpu);
  kernels.add_microsoft<RotaryEmbedding>("RotaryEmbedding", kOfMicrosoft).refused(refuse_rotary);
  kernels.add_onnx<RotaryEmbedding>("RotaryEmbedding", 23, 23, kOfOnnx).refused(refuse_onnx_rotary);
}

}  // namespace graphopt
