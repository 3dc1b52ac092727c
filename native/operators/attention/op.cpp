#include "operators/attention/op.h"

#include <optional>

#include "blocks/half.h"
#include "operators/room.h"

namespace graphopt {
namespace {

bool is_permutation(const std::vector<int64_t>& perm) {
  if (perm.size() < 2 || perm.size() > 4) return false;
  for (size_t axis = 0; axis < perm.size(); ++axis) {
    if (std::count(perm.begin(), perm.end(), static_cast<int64_t>(axis)) != 1) return false;
  }
  return true;
}

std::string text(const std::vector<int64_t>& values) {
  std::string s = "[";
  for (size_t i = 0; i < values.size(); ++i) s += (i ? "," : "") + std::to_string(values[i]);
  return s + "]";
}

std::vector<int64_t> read_perm(const Attributes& attributes, const char* name) {
  std::vector<int64_t> perm = attributes.get_ints(name);
  if (!is_permutation(perm)) {
    throw Error(std::string("attribute '") + name + "' must permute 2, 3 or 4 axes, got " + text(perm));
  }
  return perm;
}

// An operand after its perm, seen as [b, h, row, col] with size 1 for the dims that it does not have. Batch
// dims are aligned from the right as in MatMul, so the only batch dim of a rank 3 operand is h.
struct Operand4 {
  int64_t b = 1, h = 1, row = 1, col = 1;
  Strides4 stride;
};

Operand4 view(const char* name, const Shape& shape, const std::vector<int64_t>& perm) {
  const size_t rank = perm.size();
  if (shape.rank() != rank) {
    throw Error(std::string(name) + " " + shape.text() + " does not have the rank of its perm " + text(perm));
  }
  int64_t stride[4] = {};
  int64_t elements = 1;
  for (size_t i = rank; i-- > 0; elements *= shape[i]) stride[i] = elements;
  const auto axis = [&](size_t from_right) { return static_cast<size_t>(perm[rank - 1 - from_right]); };
  Operand4 v;
  v.col = shape[axis(0)];
  v.stride.col = stride[axis(0)];
  v.row = shape[axis(1)];
  v.stride.row = stride[axis(1)];
  if (rank > 2) v.h = shape[axis(2)];
  if (rank > 2 && v.h != 1) v.stride.h = stride[axis(2)];
  if (rank > 3) v.b = shape[axis(3)];
  if (rank > 3 && v.b != 1) v.stride.b = stride[axis(3)];
  return v;
}

int64_t broadcast(int64_t x, int64_t y, const char* what) {
  if (x == y || y == 1) return x;
  if (x == 1) return y;
  throw Error(std::string(what) + " do not broadcast: " + std::to_string(x) + " and " + std::to_string(y));
}

Dim broadcast(const Dim& x, const Dim& y) {
  if (x == y || y.value == 1) return x;
  if (x.value == 1 || y.known()) return y;
  if (x.known()) return x;
  return {};
}

// Strides of bias or mask against scores [b, h, rows, cols] of rank `rank`.
Strides4 broadcast_to_scores(const char* name, const Shape& shape, const int64_t (&scores)[4], size_t rank) {
  int64_t stride[4] = {};
  int64_t elements = 1;
  bool fits = shape.rank() <= rank;
  for (size_t i = 0; fits && i < shape.rank(); ++i) {  // from the right
    const int64_t dim = shape[shape.rank() - 1 - i];
    fits = dim == 1 || dim == scores[3 - i];
    if (dim != 1) stride[3 - i] = elements;
    elements *= dim;
  }
  if (!fits) {
    Shape s(rank);
    for (size_t i = 0; i < rank; ++i) s[i] = scores[4 - rank + i];
    throw Error(std::string(name) + " " + shape.text() + " does not broadcast to the scores " + s.text());
  }
  return {stride[0], stride[1], stride[2], stride[3]};
}

}  // namespace

std::vector<FusedAttentionOp> FusedAttentionOp::all() {
  std::vector<FusedAttentionOp> ops;
  for (int flags = 0; flags < 64; ++flags) {
    FusedAttentionOp op;
    op.bias_ = (flags & 1) != 0;
    op.mask_ = (flags & 2) != 0;
    op.causal_ = (flags & 4) != 0;
    op.gqa_ = (flags & 8) != 0;
    op.guard_ = (flags & 16) != 0;
    op.softcap_ = (flags & 32) != 0;
    ops.push_back(op);
  }
  return ops;
}

std::vector<FusedAttentionOp> FusedAttentionOp::all_bfloat16() {
  std::vector<FusedAttentionOp> ops;
  for (FusedAttentionOp op : all()) {
    if (op.gqa_ || op.softcap_) continue;
    op.bfloat16_ = true;
    ops.push_back(op);
  }
  return ops;
}

std::string FusedAttentionOp::name() const {
  return std::string("FusedAttention") + (bias_ ? "Bias" : "") + (mask_ ? "Mask" : "") +
         (causal_ ? "Causal" : "") + (gqa_ ? "Gqa" : "") + (guard_ ? "Guard" : "") +
         (softcap_ ? "Softcap" : "") + (bfloat16_ ? "Bf16" : "");
}

std::vector<Operand> FusedAttentionOp::inputs() const {
  std::vector<Operand> operands(bias_ ? 4 : 3, Operand::kTensor);
  if (mask_) operands.push_back(Operand::kBool);
  return operands;
}

void FusedAttentionOp::read(const Node& node) {
  scale_ = node.get_float("scale");
  q_perm_ = read_perm(node, "q_perm");
  k_perm_ = read_perm(node, "k_perm");
  v_perm_ = read_perm(node, "v_perm");
  o_perm_ = read_perm(node, "o_perm");
  const size_t rank = std::max({q_perm_.size(), k_perm_.size(), v_perm_.size()});
  if (o_perm_.size() != rank) {
    throw Error("attribute 'o_perm' " + text(o_perm_) + " must have the rank of the result, " +
                std::to_string(rank));
  }
  if (gqa_ && (q_perm_.size() != 4 || k_perm_.size() != 4 || v_perm_.size() != 4)) {
    throw Error("grouped query attention needs Q, K and V of rank 4");
  }
  if (mask_) {
    mask_value_ = node.get_float("mask_value");
    // The body casts the attribute to T: float's lowest value becomes -inf in float16, and a row of these
    // gives NaN.
    if (node.type() == ElementType::kHalf) {
      mask_value_ = static_cast<float>(static_cast<half>(mask_value_));
    }
  }
  if (softcap_) softcap_value_ = node.get_float("softcap");
}

struct FusedAttentionOp::Resolved {
  AttentionProblem problem;
  Shape output;
};

FusedAttentionOp::Resolved FusedAttentionOp::resolve(const Shapes& inputs) const {
  const Operand4 q = view("Q", inputs[0], q_perm_);
  const Operand4 k = view("K", inputs[1], k_perm_);  // [b, h, D, T]
  const Operand4 v = view("V", inputs[2], v_perm_);
  if (q.col != k.row) {
    throw Error("Q has head size " + std::to_string(q.col) + ", K has " + std::to_string(k.row));
  }
  if (k.col != v.row) {
    throw Error("K has " + std::to_string(k.col) + " keys, V has " + std::to_string(v.row) + " rows");
  }
  Resolved r;
  AttentionProblem& p = r.problem;
  p.S = q.row;
  p.T = k.col;
  p.D = q.col;
  p.Dv = v.col;
  const size_t score_rank = std::max(q_perm_.size(), k_perm_.size());
  int64_t scores[4] = {q.b, q.h, p.S, p.T};
  if (gqa_) {
    if (k.h <= 0 || k.h != v.h || q.h % k.h != 0) {
      throw Error("Q has " + std::to_string(q.h) + " heads, which must be a multiple of those of K, " +
                  std::to_string(k.h) + ", and V, " + std::to_string(v.h));
    }
    if ((k.b != 1 && k.b != q.b) || (v.b != 1 && v.b != q.b)) throw Error("batch sizes of Q, K and V differ");
    p.group = q.h / k.h;
    p.B = q.b;
    p.H = q.h;
  } else {
    scores[0] = broadcast(q.b, k.b, "batch sizes of Q and K");
    scores[1] = broadcast(q.h, k.h, "heads of Q and K");
    p.B = broadcast(scores[0], v.b, "batch sizes of the scores and V");
    p.H = broadcast(scores[1], v.h, "heads of the scores and V");
  }
  p.q = q.stride;
  p.k = {k.stride.b, k.stride.h, k.stride.col, k.stride.row};
  p.v = v.stride;
  size_t next = 3;
  if (bias_) p.bias = broadcast_to_scores("bias", inputs[next++], scores, score_rank);
  if (mask_) p.mask = broadcast_to_scores("mask", inputs[next], scores, score_rank);

  const int64_t logical[4] = {p.B, p.H, p.S, p.Dv};
  const size_t rank = o_perm_.size();
  const auto axis = [&](size_t i) { return 4 - rank + static_cast<size_t>(o_perm_[i]); };
  r.output = Shape(rank);
  for (size_t i = 0; i < rank; ++i) r.output[i] = logical[axis(i)];
  int64_t stride[4] = {};
  int64_t elements = 1;
  for (size_t i = rank; i-- > 0; elements *= r.output[i]) stride[axis(i)] = elements;
  p.o = {stride[0], stride[1], stride[2], stride[3]};

  p.has_bias = bias_;
  p.has_mask = mask_;
  p.causal = causal_;
  p.guard = guard_;
  p.bfloat16 = bfloat16_;
  p.scale = scale_;
  p.softcap = softcap_value_;
  if (mask_) p.mask_value = mask_value_;
  return r;
}

AttentionProblem FusedAttentionOp::problem(const Shapes& inputs) const { return resolve(inputs).problem; }

Shape FusedAttentionOp::output(const Shapes& inputs) const { return resolve(inputs).output; }

void FusedAttentionOp::infer(const ShapeInference& node) const {
  const char* const names[3] = {"q_perm", "k_perm", "v_perm"};
  std::vector<Dim> logical[3];  // [b, h, row, col]
  size_t rank = 0;
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<int64_t> perm = read_perm(node, names[i]);
    const SymbolicShape shape = node.input(i);
    if (shape.size() != perm.size()) return;
    rank = std::max(rank, perm.size());
    logical[i].resize(4 - perm.size(), Dim{1, ""});
    for (int64_t axis : perm) logical[i].push_back(shape[static_cast<size_t>(axis)]);
  }
  const std::vector<int64_t> o_perm = read_perm(node, "o_perm");
  if (o_perm.size() != rank) return;
  const auto& [q, k, v] = logical;
  const SymbolicShape result = {gqa_ ? q[0] : broadcast(broadcast(q[0], k[0]), v[0]),
                                gqa_ ? q[1] : broadcast(broadcast(q[1], k[1]), v[1]), q[2], v[3]};
  SymbolicShape output;
  for (int64_t axis : o_perm) output.push_back(result[4 - rank + static_cast<size_t>(axis)]);
  node.set_output(0, output);
}

namespace {

template <class T>
class FusedAttentionCpu final : public CpuKernel<FusedAttentionOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    const AttentionProblem& p = problem(call);
    const size_t mask = p.has_bias ? 4 : 3;
    cpu::fused_attention(p, data<T>(call, 0), data<T>(call, 1), data<T>(call, 2),
                         p.has_bias ? data<T>(call, 3) : nullptr,
                         p.has_mask ? data<bool>(call, mask) : nullptr, call.outputs[0].as<T>(),
                         *call.parallel, call.workspace);
    return true;
  }

 private:
  size_t workspace(const AttentionProblem& p, size_t lanes) const override {
    return cpu::fused_attention_workspace<T>(p, lanes);
  }
};

void plan_own(GpuWork<AttentionProblem>& work) {
  work.program.launch(gpu::fused_attention_plan(work.p, work.half, work.call.aligned(), work.device.facts()),
                      work.call);
}

constexpr Implementation<GpuWork<AttentionProblem>> kImplementations[] = {
    {"a kernel of our own", take_all<GpuWork<AttentionProblem>>, plan_own},
};

}  // namespace

void add_attention(Kernels& kernels) {
  kernels.add_cpu<FusedAttentionOp, FusedAttentionCpu>();
  kernels.add_cpu<FusedAttentionOp, FusedAttentionCpu>(Reuse::kNone, {ElementType::kFloat},
                                                       FusedAttentionOp::all_bfloat16());
  kernels.add_gpu<FusedAttentionOp, GpuKernel<FusedAttentionOp, kImplementations>>(Where::kGpu);
}

}  // namespace graphopt
