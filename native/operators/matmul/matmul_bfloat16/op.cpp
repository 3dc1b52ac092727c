#include "operators/matmul/matmul_bfloat16/op.h"

#include <algorithm>

#include "operators/broadcast.h"
#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

std::vector<int64_t> read_perm(const Attributes& attributes, const char* name) {
  std::vector<int64_t> perm = attributes.get_ints(name);
  throw_if(!is_permutation(perm), "attribute '", name, "' must permute the axes");
  throw_if(perm.size() < 2 || perm.size() > Shape::kMaxRank, "attribute '", name, "' must permute 2 to ",
           Shape::kMaxRank, " axes");
  return perm;
}

// The shape and strides of an operand whose axes are permuted.
struct Permuted {
  Shape shape, step;
  // Size and stride of the i-th axis from the right.
  int64_t size(size_t i) const { return shape[shape.rank() - 1 - i]; }
  int64_t distance(size_t i) const { return step[step.rank() - 1 - i]; }
};

Permuted permuted(const char* name, const Shape& shape, const std::vector<int64_t>& perm) {
  throw_if(shape.rank() != perm.size(), name, " ", shape, ": its rank differs from the length of its perm");
  Permuted result{Shape(perm.size()), Shape(perm.size())};
  for (size_t i = 0; i < perm.size(); ++i) {
    const auto axis = static_cast<size_t>(perm[i]);
    result.shape[i] = shape[axis];
    result.step[i] = shape.elements(axis + 1);
  }
  return result;
}

// A batch axis: its size in Y, and the strides of A and B; 0 if broadcast.
struct BatchAxis {
  int64_t size, a, b;
};

BatchAxis batch_axis(const Permuted& a, const Permuted& b, size_t i) {
  const int64_t m = i < a.shape.rank() ? a.size(i) : 1, n = i < b.shape.rank() ? b.size(i) : 1;
  throw_if(m != n && m != 1 && n != 1, "the batches of A and B do not broadcast: ", m, " and ", n);
  return {m == 1 ? n : m, m == 1 ? 0 : a.distance(i), n == 1 ? 0 : b.distance(i)};
}

// Returns whether all matrices form one GEMM: there is one B, and the rows of A have a constant stride over the batch.
bool is_one_gemm(const MatMulBfloat16Problem& p) {
  int64_t distance = p.M * p.a_row;
  for (size_t i = p.batch.rank(); i-- > 0;) {
    if (p.b_batch[i] != 0) return false;
    if (p.batch[i] == 1) continue;
    if (p.a_batch[i] != distance) return false;
    distance *= p.batch[i];
  }
  return true;
}

}  // namespace

void MatMulBfloat16Op::read(const Node& node) {
  alpha_ = node.get_float("alpha");
  a_perm_ = read_perm(node, "a_perm");
  b_perm_ = read_perm(node, "b_perm");
  const auto last = [](const std::vector<int64_t>& perm, size_t i) {
    return perm[perm.size() - 1 - i] == static_cast<int64_t>(perm.size()) - 1;
  };
  throw_if(!last(a_perm_, 0), "attribute 'a_perm' must keep the last axis of A");
  throw_if(!last(b_perm_, 0) && !last(b_perm_, 1),
           "attribute 'b_perm' must keep the last axis of B among the last two");
}

MatMulBfloat16Problem MatMulBfloat16Op::problem(const Shapes& inputs) const {
  const Permuted a = permuted("A", inputs[0], a_perm_), b = permuted("B", inputs[1], b_perm_);
  throw_if(a.size(0) != b.size(1), "the inner dimensions of A ", a.shape, " and B ", b.shape, " differ");
  MatMulBfloat16Problem p;
  p.M = a.size(1);
  p.K = a.size(0);
  p.N = b.size(0);
  p.a_row = a.distance(1);
  p.b_transposed = b_perm_.back() != static_cast<int64_t>(b_perm_.size()) - 1;
  p.b_next = b.distance(p.b_transposed ? 0 : 1);
  p.alpha = alpha_;
  const size_t rank = std::max(a.shape.rank(), b.shape.rank());
  p.batch = Shape(rank - 2);
  for (size_t i = 0; i < rank - 2; ++i) {
    const BatchAxis axis = batch_axis(a, b, rank - 1 - i);
    p.batch[i] = axis.size;
    p.a_batch.push_back(axis.a);
    p.b_batch.push_back(axis.b);
  }
  if (is_one_gemm(p)) {
    p.M *= p.batch.elements();
    p.batch = Shape();
    p.a_batch.clear();
    p.b_batch.clear();
  }
  return p;
}

Shape MatMulBfloat16Op::output(const Shapes& inputs) const {
  const Permuted a = permuted("A", inputs[0], a_perm_), b = permuted("B", inputs[1], b_perm_);
  Shape y(std::max(a.shape.rank(), b.shape.rank()));
  for (size_t i = 2; i < y.rank(); ++i) y[y.rank() - 1 - i] = batch_axis(a, b, i).size;
  y[y.rank() - 2] = a.size(1);
  y[y.rank() - 1] = b.size(0);
  return y;
}

void MatMulBfloat16Op::infer(const ShapeInference& node) const {
  const std::vector<int64_t> perms[2] = {read_perm(node, "a_perm"), read_perm(node, "b_perm")};
  SymbolicShape operand[2];
  for (size_t i = 0; i < 2; ++i) {
    const SymbolicShape shape = node.input(i);
    if (shape.size() != perms[i].size()) return;
    for (const int64_t axis : perms[i]) operand[i].push_back(shape[static_cast<size_t>(axis)]);
  }
  const auto& [a, b] = operand;
  SymbolicShape y(std::max(a.size(), b.size()));
  for (size_t i = 2; i < y.size(); ++i) {
    const Dim one{1, ""};
    y[y.size() - 1 - i] =
        broadcast(i < a.size() ? a[a.size() - 1 - i] : one, i < b.size() ? b[b.size() - 1 - i] : one);
  }
  y[y.size() - 2] = a[a.size() - 2];
  y[y.size() - 1] = b.back();
  node.set_output(0, y);
}

namespace {

// The kernel is float only and ignores the type parameter of add_cpu.
template <class>
using MatMulBfloat16Cpu = CpuKernelOf<MatMulBfloat16Op, float, 2, cpu::matmul_bfloat16<float>,
                                      cpu::matmul_bfloat16_workspace<float>>;

}  // namespace

void add_matmul_bfloat16(Kernels& kernels) {
  kernels.add_cpu<MatMulBfloat16Op, MatMulBfloat16Cpu>(Reuse::kNone, {ElementType::kFloat});
}

}  // namespace graphopt
