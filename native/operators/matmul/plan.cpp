#include "operators/matmul/plan.h"

#include <algorithm>
#include <stdexcept>

#include "blocks/gpu/product_shape.h"
#include "operators/convolution/product_args.h"
#include "operators/matmul/args.h"

namespace graphopt::gpu {
namespace {

constexpr int64_t kLeastDepth = 128;  // of K in a split: a multiple of every step and of a pack
constexpr int64_t kMostSplits = 16;

// blocks/gpu/product_tiles.h
struct Shape {
  int64_t m, n;
  uint32_t threads;
  const char *gemm, *conv;
};

Shape shape_of(ProductTile tile, bool half, const Architecture& arch) {
  const auto vector = [](hip::SgemmTile which, const char* gemm, const char* conv) {
    const hip::SgemmShape s = hip::sgemm_shape(which);
    return Shape{s.m, s.n, static_cast<uint32_t>(s.threads()), gemm, conv};
  };
  const bool large = tile == ProductTile::kLarge;
  if (!half) {
    return large ? vector(hip::SgemmTile::kLarge, "gemm_128x128_f32", "conv_128x128_f32")
                 : vector(hip::SgemmTile::kSmall, "gemm_64x32_f32", "conv_64x32_f32");
  }
  if (tile == ProductTile::kVector)
    return vector(hip::SgemmTile::kWide, "gemm_vector_f16", "conv_vector_f16");
  const int side = large ? 128 : 64;
  const auto threads = static_cast<uint32_t>(hip::product_waves(side, arch.wave) * arch.wave);
  return large ? Shape{side, side, threads, "gemm_128x128_f16", "conv_128x128_f16"}
               : Shape{side, side, threads, "gemm_64x64_f16", "conv_64x64_f16"};
}

Shape choose(int64_t M, int64_t N, int64_t batch, bool half, const DeviceFacts& device,
             std::optional<ProductTile> wanted) {
  const Architecture& arch = architecture(device.arch);
  if (half && arch.matrix == hip::Matrix::kNone) return shape_of(ProductTile::kVector, half, arch);
  if (wanted == ProductTile::kVector && arch.matrix != hip::Matrix::kEmulated) wanted.reset();
  if (wanted) return shape_of(*wanted, half, arch);
  // The large tile needs half the bandwidth, and enough work-groups for all compute units.
  const Shape large = shape_of(ProductTile::kLarge, half, arch);
  const bool fills = divide_up(M, large.m) * divide_up(N, large.n) * batch >= device.compute_units;
  return M > large.m / 2 && N > large.n / 2 && fills ? large : shape_of(ProductTile::kSmall, half, arch);
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
  const Shape tile = choose(p.M, p.N, batch, half, device, wanted);
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
  plan.launch(tile.gemm, {to_u31(across), to_u31(down), to_u31(batch * splits)}, tile.threads, args);
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

Plan conv_plan(const ConvolutionProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<ProductTile> wanted) {
  Plan plan;
  const int64_t H = p.in[1], W = p.in[2], OH = p.out[1], OW = p.out[2], pixels = p.N * OH * OW;
  if (pixels * p.M * p.groups == 0) return plan;
  const int64_t taps = p.kernel[1] * p.kernel[2], pack = half ? 8 : 4;
  to_u31(H * W);
  const int64_t K = to_u31(p.C * taps);
  const Shape tile = choose(p.M, pixels, p.groups, half, device, wanted);
  if (p.groups > kMostGrid || divide_up(p.M, tile.m) > kMostGrid) {
    throw std::invalid_argument("a convolution of too many groups or channels");
  }
  hip::ConvArgs args = {};
  args.x = input(0);
  args.w = input(1);
  args.bias = p.has_bias ? input(2) : no_buffer();
  args.y = output(0);
  args.M = to_i31(p.M);
  args.C = to_i31(p.C);
  args.H = to_i31(H);
  args.W = to_i31(W);
  args.groups = to_i31(p.groups);
  args.packs_of_w = aligned && K % pack == 0;
  args.packs_of_y = aligned && OH * OW % pack == 0;
  args.window = {to_i31(p.kernel[1]), to_i31(p.kernel[2]), to_i31(p.stride[1]),   to_i31(p.stride[2]),
                 to_i31(p.pad[1]),    to_i31(p.pad[2]),    to_i31(p.dilation[1]), to_i31(p.dilation[2])};
  args.pixels = to_u31(pixels);
  args.per_image = make_divisor(OH * OW);
  args.across = make_divisor(OW);
  args.taps = make_divisor(taps);
  args.kernel_w = make_divisor(p.kernel[2]);
  plan.launch(tile.conv,
              {to_u31(divide_up(pixels, tile.n)), to_u31(divide_up(p.M, tile.m)), to_u31(p.groups)},
              tile.threads, args);
  return plan;
}

}  // namespace graphopt::gpu
