#include <algorithm>

#include "operators/matmul/matmul_nbits/args.h"
#include "operators/matmul/matmul_nbits/op.h"

namespace graphopt::gpu {

Plan matmul_nbits_plan(const NBitsProblem& p, bool half, int wave) {
  Plan plan;
  if (p.M * p.N == 0) return plan;
  const bool many = p.M > 1;
  const int64_t rows = many ? hip::kNBitsManyRows : hip::kNBitsFewRows;
  const int64_t columns = many ? hip::kNBitsManyColumns : hip::kNBitsFewColumns;
  const int64_t blocks = divide_up(p.K, p.size), row_bytes = blocks * p.size * p.bits / 8;
  hip::NBitsArgs args = {};
  args.a = input(0);
  args.b = input(1);
  args.scales = input(2);
  args.points = p.has_points ? input(3) : no_buffer();
  args.groups = p.has_groups ? input(4) : no_buffer();
  args.bias = p.has_bias ? input(5) : no_buffer();
  args.y = output(0);
  args.M = to_i31(p.M);
  args.N = to_i31(p.N);
  args.K = to_i31(p.K);
  args.bits = p.bits;
  args.size = to_i31(p.size);
  args.blocks = to_i31(blocks);
  args.row_bytes = to_i31(row_bytes);
  args.point_bytes = p.packed_points ? to_i31(divide_up(blocks * p.bits, 8)) : 0;
  const char* name = float_kernel(many ? "matmul_nbits_many" : "matmul_nbits_few", half);
  const int64_t row_tiles = divide_up(p.M, rows), group_columns = columns * (hip::kNBitsThreads / wave);
  for (int64_t first = 0; first < row_tiles; first += kMaxGrid) {
    args.a = Buffer{Role::kInput, 0, first * rows * p.K * (half ? 2 : 4)};
    args.y = Buffer{Role::kOutput, 0, first * rows * p.N * (half ? 2 : 4)};
    args.M = to_i31(p.M - first * rows);
    plan.launch(name, {to_u31(divide_up(p.N, group_columns)), to_u31(std::min(kMaxGrid, row_tiles - first))},
                hip::kNBitsThreads, args);
  }
  return plan;
}

}  // namespace graphopt::gpu
