#include <algorithm>
#include <stdexcept>

#include "blocks/gpu/walk_plan.h"
#include "operators/matmul/args.h"
#include "operators/matmul/op.h"

namespace graphopt::gpu {
namespace {

constexpr int64_t kLeastDepth = 128;  // of K in a split: a multiple of every step and of a pack
constexpr int64_t kMostSplits = 16;

const char* kernel_of(ProductTile tile, bool half) {
  if (!half) return tile == ProductTile::kLarge ? "gemm_128x128_f32" : "gemm_64x32_f32";
  return tile == ProductTile::kVector  ? "gemm_vector_f16"
         : tile == ProductTile::kLarge ? "gemm_128x128_f16"
                                       : "gemm_64x64_f16";
}

// How many work-groups share the K of a tile, so that all compute units have one.
int64_t choose_splits(int64_t groups, int64_t K, const DeviceFacts& device) {
  return std::max<int64_t>(1, std::min({device.compute_units / groups, K / kLeastDepth, kMostSplits}));
}

}  // namespace

Plan gemm_plan(const GemmProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<ProductTile> wanted) {
  Plan plan;
  if (p.M * p.N * p.batch.elements() == 0) return plan;
  Walk walk(p.batch, {p.a_batch, p.b_batch});
  walk.simplify();
  const int64_t batch = walk.total(), pack = half ? 8 : 4;
  const TileOfProduct tile = choose_tile(p.M, p.N, batch, half, device, wanted);
  const int64_t across = divide_up(p.N, tile.n), down = divide_up(p.M, tile.m);
  const int64_t depth =
      round_up(divide_up(p.K, choose_splits(across * down * batch, p.K, device)), kLeastDepth);
  const int64_t splits = p.K == 0 ? 1 : divide_up(p.K, depth);
  if (batch * splits > kMostGrid || down > kMostGrid) {
    throw std::invalid_argument("a product of too many matrices, or of too many rows");
  }
  // A line is a row of A or a column of B.
  const auto layout = [&](bool along_k, int64_t lines, const std::vector<int64_t>& steps) {
    const int64_t row = along_k ? p.K : lines;
    bool packs = aligned && row % pack == 0;
    for (const int64_t step : steps) packs = packs && step % pack == 0;
    return along_k ? hip::OperandLayout{to_i31(row), 1, packs} : hip::OperandLayout{1, to_i31(row), packs};
  };
  hip::GemmArgs args = {};
  args.a = input(0);
  args.b = input(1);
  args.bias = p.has_bias ? input(2) : no_buffer();
  args.residual = p.beta == 0 ? no_buffer() : p.has_residual ? input(3) : output(0);
  args.y = output(0);
  args.partial = splits > 1 ? workspace(0) : no_buffer();
  args.M = to_i31(p.M);
  args.N = to_i31(p.N);
  args.K = to_i31(p.K);
  args.a_layout = layout(!p.transpose_a, p.M, p.a_batch);
  args.b_layout = layout(p.transpose_b, p.N, p.b_batch);
  args.batch = walk.axes();
  args.a_batch = walk.strides(0);
  args.b_batch = walk.strides(1);
  args.splits = {make_divisor(splits), to_i31(depth)};
  args.epilogue = {p.alpha, p.beta, aligned && p.N % pack == 0, p.act};
  plan.launch(kernel_of(tile.tile, half), {to_u31(across), to_u31(down), to_u31(batch * splits)},
              tile.threads, args);
  if (splits == 1) return plan;
  plan.workspace = {batch * splits * p.M * p.N * 4};
  const int64_t packs_of_row = divide_up(p.N, pack), packs = packs_of_row * p.M * batch;
  hip::GemmSumArgs sum = {};
  sum.partial = workspace(0);
  sum.bias = args.bias;
  sum.residual = args.residual;
  sum.y = output(0);
  sum.N = args.N;
  sum.splits = to_i31(splits);
  sum.packs = to_u31(packs);
  sum.across = make_divisor(packs_of_row);
  sum.rows = make_divisor(p.M);
  sum.epilogue = args.epilogue;
  plan.launch(half ? "gemm_sum_f16" : "gemm_sum_f32", {to_u31(divide_up(packs, hip::kGemmSumThreads))},
              hip::kGemmSumThreads, sum);
  return plan;
}

}  // namespace graphopt::gpu
