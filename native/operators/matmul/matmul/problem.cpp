#include "operators/matmul/matmul/problem.h"

#include <algorithm>

#include "blocks/gpu/walk_plan.h"
#include "operators/kernel.h"

namespace graphopt {
namespace {

Shape leading(const Shape& s) {
  Shape result(s.rank() - 2);
  std::copy(s.data(), s.data() + result.rank(), result.data());
  return result;
}

std::vector<int64_t> scaled(std::vector<int64_t> strides, int64_t factor) {
  for (int64_t& s : strides) s *= factor;
  return strides;
}

}  // namespace

MatmulShapes matmul_of(const Shape& a, const Shape& b, bool transpose_a, bool transpose_b) {
  // A vector is a matrix with one row or column, and the result does not have this axis. The transpose of a vector is
  // the vector itself.
  const bool row = a.rank() == 1, column = b.rank() == 1;
  throw_if(a.rank() == 0 || b.rank() == 0, "A and B must have rank 1 or more");
  Shape as = row ? Shape{1, a[0]} : a, bs = column ? Shape{b[0], 1} : b;
  gpu::GemmProblem p;
  p.transpose_a = transpose_a && !row;
  p.transpose_b = transpose_b && !column;
  if (p.transpose_a) std::swap(as[as.rank() - 1], as[as.rank() - 2]);
  if (p.transpose_b) std::swap(bs[bs.rank() - 1], bs[bs.rank() - 2]);
  p.M = as[as.rank() - 2];
  p.K = as[as.rank() - 1];
  p.N = bs[bs.rank() - 1];
  throw_if(bs[bs.rank() - 2] != p.K, "the inner dimensions of A ", a, " and B ", b, " differ");
  const Shape a_batch = leading(as), b_batch = leading(bs);
  p.batch = gpu::broadcast_shape(a_batch, b_batch);
  Shape y(p.batch.rank() + (row ? 0 : 1) + (column ? 0 : 1));
  std::copy(p.batch.data(), p.batch.data() + p.batch.rank(), y.data());
  size_t d = p.batch.rank();
  if (!row) y[d++] = p.M;
  if (!column) y[d++] = p.N;
  p.a_batch = scaled(gpu::broadcast(a_batch, p.batch), p.M * p.K);
  p.b_batch = scaled(gpu::broadcast(b_batch, p.batch), p.K * p.N);
  if (b_batch.elements() == 1 && !p.transpose_a &&
      a_batch.elements() == p.batch.elements()) {  // one matrix B: one GEMM computes all rows
    p.M *= a_batch.elements();
    p.batch = Shape();
    p.a_batch.clear();
    p.b_batch.clear();
  }
  return {std::move(p), y};
}

}  // namespace graphopt
