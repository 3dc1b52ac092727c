#include <algorithm>
#include <stdexcept>

#include "blocks/gpu/walk_plan.h"
#include "gemm/splits.h"
#include "operators/matmul/matmul/args.h"
#include "operators/matmul/matmul/op.h"

namespace graphopt::gpu {
namespace {

// The smallest depth of a split: a multiple of a pack and of all depths of steps.
constexpr int64_t kMinDepth = 128;

// Returns the number of splits of K: the largest with which each compute unit has at most one work-group.
int64_t choose_splits(int64_t groups, int64_t K, const DeviceFacts& device) {
  return std::max<int64_t>(1, std::min({device.compute_units / groups, K / kMinDepth, kMaxSplits}));
}

// Returns whether the rows of both operands consist of complete packs and A is not transposed.
bool is_aligned(const GemmProblem& p) {
  constexpr int64_t kPack = 8;
  bool complete = !p.transpose_a && p.K % kPack == 0 && (p.transpose_b || p.N % kPack == 0);
  for (const int64_t step : p.a_batch) complete = complete && step % kPack == 0;
  for (const int64_t step : p.b_batch) complete = complete && step % kPack == 0;
  return complete;
}

template <class Args>
void fill(Args& args, const GemmProblem& p, const Walk& walk, bool is_aligned) {
  args.a = input(0);
  args.b = input(1);
  args.bias = p.has_bias ? input(2) : no_buffer();
  args.residual = p.beta == 0 ? no_buffer() : p.has_residual ? input(3) : output(0);
  args.y = output(0);
  args.M = to_i31(p.M);
  args.N = to_i31(p.N);
  args.K = to_i31(p.K);
  args.batch = walk.axes();
  args.a_batch = walk.strides(0);
  args.b_batch = walk.strides(1);
  args.epilogue = {p.alpha, p.beta, is_aligned, to_i31(p.bias_step), p.act};
}

Plan aligned_plan(const GemmProblem& p, const Walk& walk, const AlignedTiling& tiling,
                  const DeviceFacts& device) {
  Plan plan;
  const bool by_k = !p.transpose_b;
  hip::GemmAlignedArgs args = {};
  fill(args, p, walk, p.N % 8 == 0 && p.bias_step % 8 == 0);
  args.a_row = to_i31(p.K);
  args.b_row = to_i31(by_k ? p.N : p.K);
  launch_aligned(plan, tiling.kernel(by_k ? "gemm_panels_" : "gemm_transposed_panels_"), tiling, walk.total(),
                 tiling.lds(by_k, device), args);
  return plan;
}

}  // namespace

Plan gemm_plan(const GemmProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<GemmTile> wanted) {
  Plan plan;
  if (p.M * p.N * p.batch.elements() == 0) return plan;
  Walk walk(p.batch, {p.a_batch, p.b_batch});
  walk.simplify();
  const int64_t batch = walk.total(), pack = half ? 8 : 4;
  if (half && aligned && is_aligned(p)) {
    const auto tiling = choose_aligned(p.M, p.N, p.K, batch, device, wanted);
    if (tiling && batch * tiling->splits <= kMaxGrid) return aligned_plan(p, walk, *tiling, device);
  }
  const StridedTiling tile = choose_strided(p.M, p.N, batch, half, device, wanted);
  const int64_t across = divide_up(p.N, tile.n), down = divide_up(p.M, tile.m);
  const int64_t depth =
      round_up(divide_up(p.K, choose_splits(across * down * batch, p.K, device)), kMinDepth);
  const int64_t splits = p.K == 0 ? 1 : divide_up(p.K, depth);
  if (batch * splits > kMaxGrid || down > kMaxGrid) {
    throw std::invalid_argument("a matrix multiplication with too many matrices or rows");
  }
  // `lines`: number of rows of A or columns of B.
  const auto layout = [&](bool along_k, int64_t lines, const std::vector<int64_t>& steps) {
    const int64_t row = along_k ? p.K : lines;
    bool complete = aligned && row % pack == 0;
    for (const int64_t step : steps) complete = complete && step % pack == 0;
    return along_k ? hip::OperandLayout{to_i31(row), 1, complete}
                   : hip::OperandLayout{1, to_i31(row), complete};
  };
  hip::GemmArgs args = {};
  fill(args, p, walk, aligned && p.N % pack == 0 && p.bias_step % pack == 0);
  args.partial = splits > 1 ? workspace(0) : no_buffer();
  args.splits = {make_divisor(splits), to_i31(depth)};
  args.a_layout = layout(!p.transpose_a, p.M, p.a_batch);
  args.b_layout = layout(p.transpose_b, p.N, p.b_batch);
  plan.launch(tile.kernel("gemm_"), {to_u31(across), to_u31(down), to_u31(batch * splits)}, tile.threads,
              args);
  if (splits > 1) add_split_reduction(plan, args, splits, batch, half);
  return plan;
}

}  // namespace graphopt::gpu
