#include <algorithm>

#include "operators/matmul/linear/args.h"
#include "operators/matmul/linear/op.h"

namespace graphopt::gpu {

GemmProblem linear_gemm(const LinearProblem& p) {
  GemmProblem gemm;
  gemm.M = p.rows;
  gemm.N = p.N;
  gemm.K = p.K;
  gemm.transpose_b = p.transposed;
  return gemm;
}

Plan linear_plan(const LinearProblem& p, bool half, bool aligned, const DeviceFacts& device) {
  GemmProblem gemm = linear_gemm(p);
  gemm.has_bias = true;
  gemm.has_residual = p.has_residual;
  gemm.beta = p.has_residual ? 1.0f : 0.0f;
  gemm.act = p.act;
  if (p.layers > 1) {
    gemm.batch = {p.layers};
    gemm.a_batch = {0};
    gemm.b_batch = {p.w_step};
    gemm.bias_step = p.b_step;
  }
  return gemm_plan(gemm, half, aligned, device);
}

Plan linear_epilogue_plan(const LinearProblem& p, bool half, bool aligned) {
  constexpr int64_t kBytes = hip::kLinearThreads * 16;
  Plan plan;
  const int64_t element = half ? 2 : 4;
  if (p.rows * p.N == 0) return plan;
  const bool vectors = aligned && p.N * element % 16 == 0;
  // A launch counts elements with 31 bits.
  const int64_t step = std::max<int64_t>(1, ((int64_t{1} << 31) - kBytes) / to_u31(p.N));
  for (int64_t first = 0; first < p.rows; first += step) {
    const int64_t total = std::min(step, p.rows - first) * p.N;
    const auto part = [&](Buffer b) {
      b.offset = first * p.N * element;
      return b;
    };
    const auto grid = static_cast<uint32_t>(divide_up(total * element, kBytes));
    hip::LinearArgs args = {};
    args.gemm = part(output(0));
    args.bias = input(2);
    args.residual = p.has_residual ? part(input(3)) : no_buffer();
    args.y = part(output(0));
    args.total = to_u31(total);
    args.columns = make_divisor(p.N);
    args.vectors = vectors;
    args.act = p.act;
    plan.launch(float_kernel("linear", half), {grid}, hip::kLinearThreads, args);
  }
  return plan;
}

}  // namespace graphopt::gpu
