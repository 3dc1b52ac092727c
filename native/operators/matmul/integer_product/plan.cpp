#include <algorithm>
#include <stdexcept>

#include "blocks/gpu/walk_plan.h"
#include "operators/matmul/integer_product/args.h"
#include "operators/matmul/integer_product/op.h"

namespace graphopt::gpu {
namespace {

template <class Args>
void fill(Args& args, const IntegerProblem& integers) {
  args.left = input(0);
  args.right = input(1);
  args.left_zero = integers.left_zero.given ? input(2) : no_buffer();
  args.right_zero = integers.right_zero.given ? input(3) : no_buffer();
  args.bias = integers.has_bias ? input(4) : no_buffer();
  args.y = output(0);
  args.left_signed = integers.left == ElementType::kInt8;
  args.right_signed = integers.right == ElementType::kInt8;
  args.left_zero_step = integers.left_zero.many;
}

Grid tiles(int64_t M, int64_t N, int64_t z) {
  const int64_t down = divide_up(M, hip::kIntegerTile);
  if (down > kMaxGrid || z > kMaxGrid) {
    throw std::invalid_argument("a matrix multiplication with too many matrices or rows");
  }
  return {to_u31(divide_up(N, hip::kIntegerTile)), to_u31(down), to_u31(z)};
}

}  // namespace

Plan integer_product_plan(const GemmProblem& p, const IntegerProblem& integers) {
  Plan plan;
  if (p.M * p.N * p.batch.elements() == 0) return plan;
  Walk walk(p.batch, {p.a_batch, p.b_batch});
  walk.simplify();
  hip::IntegerProductArgs args = {};
  fill(args, integers);
  args.M = to_i31(p.M);
  args.N = to_i31(p.N);
  args.K = to_i31(p.K);
  args.right_zero_step = integers.right_zero.many;
  args.left_m = p.transpose_a ? 1 : args.K;
  args.left_k = p.transpose_a ? args.M : 1;
  args.right_k = p.transpose_b ? 1 : args.N;
  args.right_n = p.transpose_b ? args.K : 1;
  args.bias_m = to_i31(integers.bias_m);
  args.bias_n = to_i31(integers.bias_n);
  args.batch = walk.axes();
  args.left_batch = walk.strides(0);
  args.right_batch = walk.strides(1);
  const int64_t bytes = bytes_of(integers.left);
  const char* name = bits_kernel("integer_product", bytes);
  const int64_t matrices = to_u31(walk.total());
  for (int64_t first = 0; first < matrices; first += kMaxGrid) {
    args.first = to_u31(first);
    plan.launch(name, tiles(p.M, p.N, std::min(matrices - first, kMaxGrid)), hip::kIntegerThreads, args);
  }
  return plan;
}

Plan integer_window_plan(const ConvolutionProblem& p, const IntegerProblem& integers) {
  Plan plan;
  const int64_t images = p.N * p.groups;
  if (images * p.M * p.out_size() == 0) return plan;
  hip::IntegerWindowArgs args = {};
  fill(args, integers);
  args.M = to_i31(p.M);
  args.N = to_i31(p.out_size());
  args.C = to_i31(p.C);
  args.K = to_i31(p.C * p.taps());
  to_u31(p.C * p.in_size());
  args.groups = make_divisor(p.groups);
  for (size_t d = 0; d < kSpatialAxes; ++d) {
    to_u31(p.out[d] * p.stride[d] + p.pad[d] + p.span(d));  // positions fit into int32
    args.in[d] = to_i31(p.in[d]);
    args.step[d] = to_i31(p.stride[d]);
    args.pad[d] = to_i31(p.pad[d]);
    args.tap[d] = to_i31(p.dilation[d]);
  }
  args.rows = make_divisor(p.out[1]);
  args.columns = make_divisor(p.out[2]);
  args.taps = make_divisor(p.taps());
  args.taps_b = make_divisor(p.kernel[1]);
  args.taps_c = make_divisor(p.kernel[2]);
  plan.launch("integer_window_product", tiles(p.M, p.out_size(), images), hip::kIntegerThreads, args);
  return plan;
}

Plan scale_products_plan(const ScaleProblem& p) {
  const int64_t total = p.outer * p.M * p.N;
  if (total == 0) return {};
  hip::ScaleProductsArgs args = {};
  args.x = input(0);
  args.left_scale = input(1);
  args.right_scale = input(2);
  args.y_scale = p.quantized ? input(3) : no_buffer();
  args.y_zero = p.has_zero ? input(4) : no_buffer();
  args.bias = p.has_bias ? input(5) : no_buffer();
  args.y = output(0);
  args.total = to_u31(total);
  args.M = make_divisor(p.M);
  args.N = make_divisor(p.N);
  args.left_step = p.left_many;
  args.right_step = p.right_many;
  args.is_signed = p.quantized == ElementType::kInt8;
  args.alpha = p.alpha;
  return one_launch("scale_products", total, hip::kScaleThreads, args);
}

}  // namespace graphopt::gpu
