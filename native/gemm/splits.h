// Launches of GEMMs that split K among work-groups.
#pragma once

#include "device/launch.h"
#include "gemm/planner.h"
#include "gemm/splits_args.h"

namespace graphopt::gpu {

// Sets the plan's workspace to the partial sums of `batch` GEMMs and adds the launch that reduces them. `gemm`:
// arguments of the GEMM launch; M, N, bias, residual, y and epilogue are copied from it.
template <class Args>
void add_split_reduction(Plan& plan, const Args& gemm, int64_t splits, int64_t batch, bool half) {
  const int64_t M = gemm.M, N = gemm.N, across = divide_up(N, half ? 8 : 4), packs = across * M * batch;
  plan.workspace = {batch * splits * M * N * 4};
  hip::GemmSumArgs sum = {};
  sum.partial = workspace(0);
  sum.bias = gemm.bias;
  sum.residual = gemm.residual;
  sum.y = gemm.y;
  sum.N = gemm.N;
  sum.splits = to_i31(splits);
  sum.packs = to_u31(packs);
  sum.across = make_divisor(across);
  sum.rows = make_divisor(M);
  sum.epilogue = gemm.epilogue;
  plan.launch_items(float_kernel("gemm_sum", half), packs, hip::kGemmSumThreads, sum);
}

// Fills in the arguments that depend on the tiling and adds the launch of the kernel. If K is split, a second
// launch reduces the partial sums.
template <class Args>
void launch_aligned(Plan& plan, const char* kernel, const AlignedTiling& tiling, int64_t batch, uint32_t lds,
                    Args& args) {
  args.partial = tiling.splits > 1 ? workspace(0) : no_buffer();
  args.down = to_i31(tiling.down);
  args.across = make_divisor(tiling.across);
  args.splits = {make_divisor(tiling.splits), to_i31(tiling.depth)};
  const Grid grid = {to_u31(tiling.tiles()), 1, to_u31(batch * tiling.splits)};
  plan.launch(kernel, grid, tiling.threads, args).lds = lds;
  if (tiling.splits > 1) add_split_reduction(plan, args, tiling.splits, batch, true);
}

}  // namespace graphopt::gpu
