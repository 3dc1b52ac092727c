#include "operators/attention/attention/op.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "blocks/half.h"
#include "operators/broadcast.h"
#include "operators/kernel_bases.h"
#include "operators/movement/movement/op.h"

namespace graphopt {
namespace {

std::string text(const std::vector<int64_t>& values) {
  std::string s = "[";
  for (size_t i = 0; i < values.size(); ++i) s += (i ? "," : "") + std::to_string(values[i]);
  return s + "]";
}

std::vector<int64_t> read_perm(const Attributes& attributes, const char* name) {
  std::vector<int64_t> perm = attributes.get_ints(name);
  if (!is_permutation(perm) || perm.size() < 2 || perm.size() > 4)
    throw Error("attribute '", name, "' must permute 2, 3 or 4 axes, got ", text(perm));
  return perm;
}

// An operand with its perm applied, as [b, h, row, col]. Missing dims have size 1. Batch dims are aligned from the
// right as in MatMul: the batch dim of an operand of rank 3 is h.
struct Operand4 {
  int64_t b = 1, h = 1, row = 1, col = 1;
  Strides4 stride;
};

Operand4 view(const char* name, const StridedShape& operand, const std::vector<int64_t>& perm) {
  const size_t rank = perm.size();
  const auto& [shape, stride, offset] = operand;
  if (shape.rank() != rank)
    throw Error(name, " ", shape, ": its rank differs from the length of its perm ", text(perm));
  const auto axis = [&](size_t from_right) { return static_cast<size_t>(perm[rank - 1 - from_right]); };
  Operand4 v;
  v.stride.offset = offset;
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
  throw Error(what, " do not broadcast: ", x, " and ", y);
}

// Returns the strides of bias or mask, broadcast to scores [b, h, rows, cols] of rank `rank`.
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
    throw Error(name, " ", shape, " does not broadcast to the scores ", s);
  }
  return {stride[0], stride[1], stride[2], stride[3]};
}

}  // namespace

std::vector<FusedAttentionOp> FusedAttentionOp::all() {
  std::vector<FusedAttentionOp> ops;
  for (int flags = 0; flags < 128; ++flags) {
    FusedAttentionOp op;
    op.bias_ = (flags & 1) != 0;
    op.mask_ = (flags & 2) != 0;
    op.causal_ = (flags & 4) != 0;
    op.gqa_ = (flags & 8) != 0;
    op.guard_ = (flags & 16) != 0;
    op.softcap_ = (flags & 32) != 0;
    op.window_ = (flags & 64) != 0;
    if (op.window_ && (op.causal_ || op.guard_ != (op.bias_ || op.mask_))) continue;
    ops.push_back(op);
  }
  return ops;
}

std::vector<FusedAttentionOp> FusedAttentionOp::all_bfloat16() {
  std::vector<FusedAttentionOp> ops;
  for (FusedAttentionOp op : all()) {
    if (op.gqa_ || op.softcap_ || op.window_) continue;
    op.bfloat16_ = true;
    ops.push_back(op);
  }
  return ops;
}

std::string FusedAttentionOp::name() const {
  return std::string("FusedAttention") + (bias_ ? "Bias" : "") + (mask_ ? "Mask" : "") +
         (causal_ ? "Causal" : "") + (gqa_ ? "Gqa" : "") + (guard_ ? "Guard" : "") +
         (softcap_ ? "Softcap" : "") + (window_ ? "Window" : "") + (bfloat16_ ? "Bf16" : "");
}

std::vector<Operand> FusedAttentionOp::inputs() const {
  std::vector<Operand> operands(bias_ ? 4 : 3, Operand::kTensor);
  if (mask_) operands.push_back(Operand::kBool);
  return operands;
}

void FusedAttentionOp::read(const Node& node) {
  scale_ = node.get_float("scale");
  for (size_t i = 0; i < 3; ++i) slices_[i] = InputSlice::read(node, i);
  q_perm_ = read_perm(node, "q_perm");
  k_perm_ = read_perm(node, "k_perm");
  v_perm_ = read_perm(node, "v_perm");
  o_perm_ = read_perm(node, "o_perm");
  const size_t rank = std::max({q_perm_.size(), k_perm_.size(), v_perm_.size()});
  throw_if(o_perm_.size() != rank, "attribute 'o_perm' ", text(o_perm_),
           " must have the rank of the result, ", rank);
  throw_if(gqa_ && (q_perm_.size() != 4 || k_perm_.size() != 4 || v_perm_.size() != 4),
           "grouped query attention needs Q, K and V of rank 4");
  if (mask_) {
    mask_value_ = node.get_float("mask_value");
    // The function body casts the attribute to T. In float16, float's lowest value becomes -inf, and a row in which all
    // keys are masked gives NaN.
    if (node.type() == ElementType::kHalf) {
      mask_value_ = static_cast<float>(static_cast<half>(mask_value_));
    }
  }
  if (softcap_) softcap_value_ = node.get_float("softcap");
  if (window_) {
    left_ = node.get_int("left");
    right_ = node.get_int("right");
    throw_if(left_ < 0 || right_ < 0, "a window that excludes the query's own key");
  }
}

struct FusedAttentionOp::Resolved {
  AttentionProblem problem;
  Shape output;
};

FusedAttentionOp::Resolved FusedAttentionOp::resolve(const Shapes& inputs) const {
  const Operand4 q = view("Q", strided(inputs[0], slices_[0]), q_perm_);
  const Operand4 k = view("K", strided(inputs[1], slices_[1]), k_perm_);  // [b, h, D, T]
  const Operand4 v = view("V", strided(inputs[2], slices_[2]), v_perm_);
  throw_if(q.col != k.row, "Q has head size ", q.col, ", K has ", k.row);
  throw_if(k.col != v.row, "K has ", k.col, " keys, V has ", v.row, " rows");
  Resolved r;
  AttentionProblem& p = r.problem;
  p.S = q.row;
  p.T = k.col;
  p.D = q.col;
  p.Dv = v.col;
  const size_t score_rank = std::max(q_perm_.size(), k_perm_.size());
  int64_t scores[4] = {q.b, q.h, p.S, p.T};
  if (gqa_) {
    throw_if(k.h <= 0 || k.h != v.h || q.h % k.h != 0, "Q has ", q.h,
             " heads, which must be a multiple of those of K, ", k.h, ", and V, ", v.h);
    throw_if((k.b != 1 && k.b != q.b) || (v.b != 1 && v.b != q.b), "batch sizes of Q, K and V differ");
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
  p.k = {k.stride.b, k.stride.h, k.stride.col, k.stride.row, k.stride.offset};
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
  p.window = window_;
  p.left = left_;
  p.right = right_;
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
  size_t workspace(const AttentionProblem& p, size_t workers) const override {
    return cpu::fused_attention_workspace<T>(p, workers);
  }
};

gpu::Plan plan_of(const AttentionProblem& p, bool half, bool aligned, const gpu::DeviceFacts& facts) {
  return gpu::fused_attention_plan(p, half, aligned, facts);
}

// ai.onnx Attention. Inputs Q, K, V [B, heads, tokens, H] or [B, tokens, heads H], mask, past K and V; outputs Y in the
// layout of Q, and present K and V.
class Attention final : public gpu::DeviceKernel {
 public:
  Attention(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        causal_(node.get_bool("is_causal")),
        q_heads_(node.get_int("q_num_heads", 0)),
        kv_heads_(node.get_int("kv_num_heads", 0)),
        scale_(node.find_float("scale")),
        softcap_(node.get_float("softcap", 0.0f)),
        left_(node.get_int("left_window_size", -1)),
        right_(node.get_int("right_window_size", -1)) {
    throw_if(left_ < -1 || right_ < -1, "a window that excludes the query's own key");
  }

 private:
  enum : size_t { kQ, kK, kV, kMask, kPastK, kPastV };

  // [B, heads, tokens, H].
  struct Heads {
    Shape shape;
    Strides4 stride;
  };

  static Heads heads_of(const Shape& x, int64_t heads) {
    if (x.rank() == 4) return {x, {x[1] * x[2] * x[3], x[2] * x[3], x[3], 1}};
    throw_if(x.rank() != 3 || heads <= 0 || x[2] % heads != 0,
             "Q, K and V must have rank 4, or rank 3 with a last axis that divides into heads");
    return {{x[0], heads, x[1], x[2] / heads}, {x[1] * x[2], x[2] / heads, x[2], 1}};
  }

  void plan(Call& call, Program& program) const override {
    const bool half = is_half(call.input(kQ)), has_past = call.has_input(kPastK);
    const Heads q = heads_of(call.input(kQ).shape, q_heads_);
    Heads k = heads_of(call.input(kK).shape, kv_heads_), v = heads_of(call.input(kV).shape, kv_heads_);
    throw_if(k.shape[0] != q.shape[0] || v.shape[0] != q.shape[0] || k.shape[1] != v.shape[1] ||
                 k.shape[2] != v.shape[2] || k.shape[3] != q.shape[3],
             "K ", k.shape, " and V ", v.shape, " do not fit Q ", q.shape);
    throw_if(k.shape[1] == 0 || q.shape[1] % k.shape[1] != 0,
             "the heads of Q must be a multiple of those of K and V");
    const int64_t past = has_past ? past_tokens(call, k.shape, v.shape) : 0;
    Ref from_k = Ref::input(kK), from_v = Ref::input(kV);
    if (has_past || call.outputs.size() > 1) {
      from_k = append(call, program, kK, k, past, 1);
      from_v = append(call, program, kV, v, past, 2);
    }
    AttentionProblem p;
    p.B = q.shape[0];
    p.H = q.shape[1];
    p.S = q.shape[2];
    p.T = k.shape[2];
    p.D = q.shape[3];
    p.Dv = v.shape[3];
    p.group = p.H / k.shape[1];
    p.q = q.stride;
    p.k = k.stride;
    p.v = v.stride;
    p.scale = scale_.value_or(1.0f / std::sqrt(static_cast<float>(p.D)));
    p.softcap = softcap_;
    Shape y = call.input(kQ).shape;
    y[y.rank() - 1] = y.rank() == 4 ? p.Dv : p.H * p.Dv;
    p.o = heads_of(y, q_heads_).stride;
    if (call.has_input(kMask)) {
      const Tensor& mask = call.input(kMask);
      const int64_t scores[4] = {p.B, p.H, p.S, p.T};
      p.has_mask = mask.type == ElementType::kBool;
      p.has_bias = !p.has_mask;
      (p.has_mask ? p.mask : p.bias) = broadcast_to_scores("attn_mask", mask.shape, scores, 4);
      p.guard = true;  // a query that sees no key gives zeros
    }
    set_visible_keys(p, past);
    const Ref to = set_output(call, 0, y);
    const Ref mask = call.has_input(kMask) ? Ref::input(kMask) : Ref();
    program.launch(gpu::fused_attention_plan(p, half, call.aligned(), device_.facts()),
                   {Ref::input(kQ), from_k, from_v, mask}, {to});
  }

  // Sets the keys that each query sees. In ONNX, query i has the position of key past + i. In an AttentionProblem, the
  // last query has the position of the last key.
  void set_visible_keys(AttentionProblem& p, int64_t past) const {
    const int64_t beyond = p.T - p.S - past, all = p.S + p.T;
    if (causal_ && left_ < 0 && beyond >= 0) {  // no query sees the keys after the last query
      p.causal = true;
      p.T -= beyond;
    } else if (causal_ || left_ >= 0 || right_ >= 0) {
      p.window = true;
      p.left = (left_ < 0 ? all : std::min(left_, all)) + beyond;
      p.right = (causal_ ? 0 : right_ < 0 ? all : std::min(right_, all)) - beyond;
      p.guard = p.guard || beyond != 0;  // a query may see no key
    }
  }

  static int64_t past_tokens(const Call& call, const Shape& k, const Shape& v) {
    const Shape &past_k = call.input(kPastK).shape, &past_v = call.input(kPastV).shape;
    const int64_t tokens = past_k.rank() == 4 ? past_k[2] : 0;
    throw_if(past_k != Shape{k[0], k[1], tokens, k[3]} || past_v != Shape{v[0], v[1], tokens, v[3]},
             "past K ", past_k, " and V ", past_v, " do not match K and V");
    return tokens;
  }

  // Stores `past` old tokens and then the new tokens to the output, or to the workspace if the output is absent.
  Ref append(Call& call, Program& program, size_t which, Heads& heads, int64_t past, size_t output) const {
    const ElementType type = call.input(which).type;
    Shape all = heads.shape;
    all[2] += past;
    const bool wanted = output < call.outputs.size();
    const Ref to =
        wanted ? set_output(call, output, all, type) : program.reserve(all.elements() * bytes_of(type));
    const auto copy = [&](const Shape& shape, const Strides4& from, int64_t first, size_t input) {
      gpu::StridedCopy c = gpu::copy_to(shape, {from.b, from.h, from.row, from.col}, bytes_of(type));
      c.y_strides = gpu::contiguous(all);
      c.y_offset = first * all[3];
      program.launch(gpu::strided_copy_plan(c, call.aligned()), {Ref::input(input)}, {to});
    };
    if (past > 0) {
      const size_t input = which == kK ? kPastK : kPastV;
      const Shape& shape = call.input(input).shape;
      copy(shape, heads_of(shape, 0).stride, 0, input);
    }
    copy(heads.shape, heads.stride, past, which);
    heads = heads_of(all, 0);
    return to;
  }

  bool causal_;
  int64_t q_heads_, kv_heads_;
  std::optional<float> scale_;
  float softcap_;
  int64_t left_, right_;  // number of keys before and after its position that a query sees; -1: all
};

std::string refuse_attention(const Node& node) {
  const std::string mixed = refuse_mixed_floats(node, {3, 6});
  if (!mixed.empty()) return mixed;
  const bool masked = node.has_input(3);
  if (masked && node.inputs[3].type != ElementType::kBool && node.inputs[3].type != node.type()) {
    return "a mask of this type";
  }
  if (node.has_input(4) != node.has_input(5)) return "only one of past_key and past_value";
  if (node.has_input(6)) return "the input nonpad_kv_seqlen";
  if (node.outputs.size() > 3 && node.outputs[3].present) return "scores as an output";
  const bool has_key = node.outputs.size() > 1 && node.outputs[1].present,
             has_value = node.outputs.size() > 2 && node.outputs[2].present;
  if (has_key != has_value) return "only one of present_key and present_value";
  if (node.outputs.size() > 1 && !has_key) return "present_key and present_value with empty names";
  const bool causal = node.get_bool("is_causal");
  // In version 23 softcap applies to the masked scores.
  if (node.get_float("softcap", 0.0f) != 0.0f && node.version < 24 && (masked || causal)) {
    return "softcap of masked scores";
  }
  for (size_t i = 0; i < 3; ++i) {
    const auto& x = node.inputs[i].shape;
    if (!x || (x->rank() != 3 && x->rank() != 4)) return "the rank is not known";
    const int64_t heads =
        x->rank() == 4 ? 1 : node.find_int(i == 0 ? "q_num_heads" : "kv_num_heads").value_or(0);
    const int64_t last = (*x)[x->rank() - 1];
    if (last < 0 || heads <= 0) return "the size of a head is not known";
    if (last / heads > 256) return "heads of more than 256 elements";
  }
  if (masked && node.version >= 24) {
    const auto &mask = node.inputs[3].shape, &k = node.inputs[1].shape;
    if (!mask || mask->rank() == 0) return "the rank of the mask is not known";
    const int64_t keys = (*k)[k->rank() == 4 ? 2 : 1], last = (*mask)[mask->rank() - 1];
    if (!node.has_input(4) && keys >= 0 && last >= 0 && last != keys && last != 1)
      return "a mask whose last axis is not the number of keys";
  }
  return "";
}

}  // namespace

void add_attention(Kernels& kernels) {
  kernels.add_cpu<FusedAttentionOp, FusedAttentionCpu>();
  kernels.add_cpu<FusedAttentionOp, FusedAttentionCpu>(Reuse::kNone, {ElementType::kFloat},
                                                       FusedAttentionOp::all_bfloat16());
  kernels.add_gpu<FusedAttentionOp, BuiltInGpuKernel<FusedAttentionOp, plan_of>>(Where::kGpu, Reuse::kNone,
                                                                                 3);
  kernels.add_onnx("Attention", 23, 25, kernel<Attention>).refused(refuse_attention);
}

}  // namespace graphopt
