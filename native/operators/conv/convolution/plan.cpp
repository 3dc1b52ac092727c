#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "gemm/loaders/halo_args.h"
#include "gemm/loaders/im2col_args.h"
#include "gemm/splits.h"
#include "operators/conv/convolution/depthwise_args.h"
#include "operators/conv/convolution/direct_args.h"
#include "operators/conv/convolution/disjoint_args.h"
#include "operators/conv/convolution/few_channels_args.h"
#include "operators/conv/convolution/op.h"

namespace graphopt::gpu {
namespace {

// The outputs of an axis that one launch writes: all outputs of a convolution, or every `stride`-th output of a
// transposed convolution. Outputs at a distance of `stride` use the same taps.
struct Outputs {
  int64_t count = 0, first = 0,
          first_tap = 0;  // number of outputs, the first output, the first tap that they use
  hip::ConvolutionAxis axis = {};
};

Outputs outputs_of(const ConvolutionProblem& p, size_t d, int64_t phase) {
  Outputs o;
  o.axis.in = to_i31(p.in[d]);
  if (!p.transposed) {
    o.count = p.out[d];
    o.axis.taps = to_i31(p.kernel[d]);
    o.axis.step = to_i31(p.stride[d]);
    o.axis.first = -to_i31(p.pad[d]);
    o.axis.tap = to_i31(p.dilation[d]);
    o.axis.filter = 1;
    o.axis.out = 1;
    return o;
  }
  // Y[o] += W[k] * X[i] with o = i * stride + k * dilation - pad. For o = phase + q * stride, tap k contributes
  // if phase + pad - k * dilation is a multiple of the stride: every (stride / g)-th tap.
  const int64_t stride = p.stride[d], dilation = p.dilation[d], g = std::gcd(stride, dilation);
  o.count = p.out[d] > phase ? divide_up(p.out[d] - phase, stride) : 0;
  o.first = phase;
  o.axis.step = 1;
  o.axis.out = to_i31(stride);
  const int64_t tap_stride = stride / g;
  int64_t tap = 0;
  while (tap < tap_stride && (phase + p.pad[d] - tap * dilation) % stride != 0) ++tap;
  if (tap == tap_stride || tap >= p.kernel[d]) return o;
  o.first_tap = tap;
  o.axis.taps = to_i31(divide_up(p.kernel[d] - tap, tap_stride));
  o.axis.first = static_cast<int32_t>((phase + p.pad[d] - tap * dilation) / stride);
  o.axis.tap = -to_i31(dilation / g);
  o.axis.filter = to_i31(tap_stride);
  return o;
}

hip::ConvWindow window_of(const ConvolutionProblem& p) {
  return {to_i31(p.kernel[1]), to_i31(p.kernel[2]), to_i31(p.stride[1]),   to_i31(p.stride[2]),
          to_i31(p.pad[1]),    to_i31(p.pad[2]),    to_i31(p.dilation[1]), to_i31(p.dilation[2])};
}

template <class Args>
void fill_convolution_operands(Args& args, const ConvolutionProblem& p) {
  args.x = input(0);
  args.w = input(1);
  args.bias = p.has_bias ? input(2) : no_buffer();
  args.y = output(0);
}

// Throws std::invalid_argument if the second or third axis of a grid is too long.
void require_grid(int64_t rows, int64_t groups) {
  if (groups > kMaxGrid || rows > kMaxGrid) {
    throw std::invalid_argument("a convolution of too many groups or channels");
  }
}

// Sets the common arguments of the channels-last kernels. M and N are the rows and columns of the GEMM: pixels and
// filters. In the problem, p.M is the number of filters and p.N the number of images.
template <class Args>
void fill_channels_last(Args& args, const ConvolutionProblem& p, int64_t M, int64_t N) {
  fill_convolution_operands(args, p);
  args.residual = p.has_residual ? input(3) : no_buffer();
  args.M = to_i31(M);
  args.N = to_i31(N);
  args.epilogue = {1.0f, p.has_residual ? 1.0f : 0.0f, p.M % 8 == 0, 0, p.act};
}

}  // namespace

Plan convolution_plan(const ConvolutionProblem& p, bool half) {
  Plan plan;
  const int64_t in_plane = p.in_size(), out_plane = p.out_size(), taps = p.taps();
  if (p.N * p.y_channels() * out_plane == 0) return plan;
  for (size_t d = 0; d < kSpatialAxes; ++d) {
    to_u31(p.out[d] * (p.transposed ? 1 : p.stride[d]) + p.pad[d] + p.span(d));  // positions fit into int32
  }
  const int64_t filters = p.M < hip::kConvolutionFilters / 2 ? 1 : hip::kConvolutionFilters;
  require_grid(divide_up(p.M, filters), p.groups);
  const int64_t along[kSpatialAxes] = {p.kernel[1] * p.kernel[2], p.kernel[2], 1},
                across[kSpatialAxes] = {p.out[1] * p.out[2], p.out[2], 1};
  int64_t phases[kSpatialAxes] = {1, 1, 1};
  for (size_t d = 0; d < kSpatialAxes && p.transposed; ++d) phases[d] = std::min(p.stride[d], p.out[d]);
  for (int64_t phase = 0; phase < phases[0] * phases[1] * phases[2]; ++phase) {
    hip::ConvolutionArgs args = {};
    args.strides.filter = to_i31(p.transposed ? taps : p.C * taps);
    args.strides.channel = to_i31(p.transposed ? p.M * taps : taps);
    args.strides.group = to_i31(p.C * p.M * taps);
    Outputs outputs[kSpatialAxes];
    for (size_t d = 0; d < kSpatialAxes; ++d) {
      const int64_t rest = d == 0 ? phase / (phases[1] * phases[2]) : d == 1 ? phase / phases[2] : phase;
      Outputs& o = outputs[d] = outputs_of(p, d, rest % phases[d]);
      args.strides.first_tap += to_i31(o.first_tap * along[d]);
      args.strides.first_pixel += to_i31(o.first * across[d]);
      o.axis.filter *= to_i31(along[d]);
      o.axis.out *= to_i31(across[d]);
      args.axes[d] = o.axis;
    }
    const int64_t per_plane = outputs[1].count * outputs[2].count, per_image = outputs[0].count * per_plane;
    if (per_image == 0) continue;
    fill_convolution_operands(args, p);
    args.M = to_i31(p.M);
    args.C = to_i31(p.C);
    args.groups = to_i31(p.groups);
    args.in_plane = to_u31(in_plane);
    args.out_plane = to_u31(out_plane);
    args.pixels = to_u31(p.N * per_image);
    args.per_image = make_divisor(per_image);
    args.per_plane = make_divisor(per_plane);
    args.across = make_divisor(outputs[2].count);
    const int64_t group = hip::kConvolutionThreads * hip::kConvolutionPixels;
    plan.launch(float_kernel(filters == 1 ? "convolution_1" : "convolution_8", half),
                {to_u31(divide_up(args.pixels, group)), to_u31(divide_up(p.M, filters)), to_u31(p.groups)},
                hip::kConvolutionThreads, args);
  }
  return plan;
}

Plan conv_plan(const ConvolutionProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<GemmTile> wanted) {
  const int64_t H = p.in[1], W = p.in[2], OH = p.out[1], OW = p.out[2], pixels = p.N * OH * OW;
  if (pixels * p.y_channels() == 0) return {};
  const int64_t taps = p.kernel[1] * p.kernel[2], pack = half ? 8 : 4;
  to_u31(H * W);
  const int64_t K = to_u31(p.C * taps);
  const StridedTiling tile = choose_strided(p.M, pixels, p.groups, half, device, wanted);
  require_grid(divide_up(p.M, tile.m), p.groups);
  hip::ConvArgs args = {};
  fill_convolution_operands(args, p);
  args.M = to_i31(p.M);
  args.C = to_i31(p.C);
  args.H = to_i31(H);
  args.W = to_i31(W);
  args.groups = to_i31(p.groups);
  args.packs_of_w = aligned && K % pack == 0;
  args.packs_of_y = aligned && OH * OW % pack == 0;
  args.window = window_of(p);
  args.pixels = to_u31(pixels);
  args.per_image = make_divisor(OH * OW);
  args.across = make_divisor(OW);
  args.taps = make_divisor(taps);
  args.kernel_w = make_divisor(p.kernel[2]);
  return one_launch(tile.kernel("conv_"),
                    Grid{to_u31(divide_up(pixels, tile.n)), to_u31(divide_up(p.M, tile.m)), to_u31(p.groups)},
                    tile.threads, args);
}

const char* refuse_few_channels(const ConvolutionProblem& p) {
  if (p.groups != 1 || p.taps() != 1 || p.in != p.out) return "not a pointwise convolution of all pixels";
  // With more products for each pixel, a library's GEMM is faster, even with the launch that a bias adds (measured on
  // an H200).
  const int64_t most_products = p.has_bias ? 64 : 16;
  const bool fits = std::max(p.C, p.M) <= hip::kFewChannels && p.C * p.M <= most_products;
  return fits ? nullptr : "too many channels or filters";
}

Plan few_channels_plan(const ConvolutionProblem& p, bool half, bool aligned, const DeviceFacts& device,
                       std::optional<bool> wants_vectors) {
  const int64_t plane = p.in_size(), pixels = p.N * plane;
  if (pixels * p.M == 0) return {};
  // Vectors of pixels need fewer instructions, but give fewer work-items. They are used if enough work-items remain to
  // hide latencies: a few waves on each SIMD.
  constexpr int64_t kItemsOfUnit = 512;
  const bool is_wide =
      aligned && plane % hip::kFewChannelsVector == 0 &&
      wants_vectors.value_or(pixels / hip::kFewChannelsVector >= kItemsOfUnit * device.compute_units);
  const int64_t vectors = is_wide ? plane / hip::kFewChannelsVector : plane;
  hip::FewChannelsArgs args = {};
  fill_convolution_operands(args, p);
  args.M = to_i31(p.M);
  args.C = to_i31(p.C);
  args.total = to_u31(p.N * vectors);
  args.vectors = make_divisor(vectors);
  args.plane = to_u31(plane);
  return one_launch(float_kernel(is_wide ? "few_channels_4" : "few_channels_1", half), args.total,
                    hip::kFewChannelsThreads, args);
}

const char* refuse_channels_last_conv(const ConvolutionProblem& p, const DeviceFacts& device) {
  if (architecture(device.arch).matrix == hip::Matrix::kNone) return "the device has no matrix units";
  if (p.groups != 1) return "more than one group";
  if (p.C % 8 != 0) return "the number of input channels is not a multiple of 8";
  if (p.in[0] != 1 || p.kernel[0] != 1 || p.out[0] != 1) return "three spatial axes";
  if (p.kernel[1] > hip::kChannelsLastConvTaps || p.kernel[2] > hip::kChannelsLastConvTaps)
    return "the kernel is too large";
  if (!p.transposed) return nullptr;
  for (size_t d = 1; d < kSpatialAxes; ++d) {
    if (p.kernel[d] != p.stride[d] || p.pad[d] != 0 || p.dilation[d] != 1 ||
        p.out[d] != p.in[d] * p.stride[d]) {
      return "the windows are not disjoint";
    }
  }
  return p.M % 8 == 0 ? nullptr : "the number of output channels is not a multiple of 8";
}

const char* refuse_conv_halo(const ConvolutionProblem& p, const DeviceFacts& device) {
  const char* why = refuse_channels_last_conv(p, device);
  if (why != nullptr) return why;
  if (!has_nvidia_kernels(architecture(device.arch))) return "the device has no direct copies to LDS";
  if (p.transposed) return "a transposed convolution";
  for (size_t d = 1; d < kSpatialAxes; ++d) {
    if (p.stride[d] != 1 || p.dilation[d] != 1 || p.in[d] != p.out[d])
      return "strides or dilations are not 1, or Y has another size than X";
  }
  // A block of channels has one step for each tap. HaloCopies does not copy pixels of the next block during the first
  // kStepsInFlight steps of a block. With fewer than kLeastTaps taps, too few steps remain for the copy.
  constexpr int64_t kLeastTaps = 6;
  return p.taps() >= kLeastTaps && p.taps() <= hip::kConvHaloTaps ? nullptr : "too few or too many taps";
}

namespace {

constexpr int64_t kHaloBlocks = 2;  // LDS buffers for blocks of channels

// Returns the multiple to which choose_halo() pads C: the number of channels in a step of most tiles.
int64_t halo_block(const Architecture& arch) { return arch.matrix == hip::Matrix::kMma ? 64 : 32; }

// Returns the number of pixels of X that a halo tile reads.
int64_t halo_rows(const ConvolutionProblem& p, const hip::MatrixShape& shape) {
  return shape.m + (p.kernel[1] - 1) * p.in[2] + p.kernel[2] - 1;
}

// Returns the bytes of LDS of a halo tile. The kernels have at least three buffers for filters, also when the CPU
// emulates them.
int64_t halo_lds(const ConvolutionProblem& p, const hip::MatrixShape& shape) {
  const int64_t rows =
      std::max(shape.stages, 3) * shape.n + hip::kHaloZeros + kHaloBlocks * halo_rows(p, shape);
  return rows * (shape.depth + 8) * 2 + shape.m * 4;
}

// Returns the cost of a halo tile. Returns no value if the device has no kernel for the tile, or if LDS is too small
// for the kernel's number of work-groups on a compute unit. Also returns none if a block has too few steps to copy the
// pixels of the next block.
std::optional<hip::TileCost> halo_cost(const ConvolutionProblem& p, const hip::AlignedTile& tile,
                                       const hip::MatrixShape& shape, bool copies_to_lds,
                                       const DeviceFacts& device) {
  const Architecture& arch = architecture(device.arch);
  if (!hip::runs_on(tile.halo_kernels, copies_to_lds)) return std::nullopt;
  const int threads = shape.threads(arch.wave);
  const int64_t at_once =
      threads / (shape.depth / 8) * hip::halo_chunks(threads, shape.depth / 16 / shape.split_k);
  if (halo_rows(p, shape) > (p.taps() - std::max(shape.stages, 3) + 1) * at_once) return std::nullopt;
  // choose_halo() uses the same padded K for all tiles, so C must be padded equally for this tile.
  const int64_t block = halo_block(arch);
  if (round_up(p.C, shape.depth) != round_up(p.C, block)) return std::nullopt;
  const int64_t groups = copies_to_lds ? tile.groups_per_unit : 1;
  constexpr int64_t kReserved = 1024;  // bytes that the device reserves for each work-group
  const bool fits = halo_lds(p, shape) + (groups > 1 ? kReserved : 0) <= arch.lds_bytes / groups;
  return fits ? std::optional(tile.halo_cost) : std::nullopt;
}

// The number of pixels in the tallest tiles. choose_halo() may use these tiles for full waves, in which every compute
// unit has a tile.
constexpr int kMostHaloPixels = [] {
  int most = 0;
  for (const hip::AlignedTile& tile : hip::kAlignedTiles) {
    if (tile.halo_kernels != hip::Targets::kNone) most = std::max(most, tile.copies_to_lds.m);
  }
  return most;
}();

// One tile size for all pixels; or, in two launches, tall tiles for the full waves and smaller tiles for the remaining
// pixels.
struct HaloTiles {
  AlignedTiling first;
  std::optional<AlignedTiling> rest;
  double clocks() const { return first.clocks + (rest ? kClocksOfLaunch + rest->clocks : 0); }
};

std::optional<HaloTiles> choose_halo(const ConvolutionProblem& p, const DeviceFacts& device,
                                     std::optional<GemmTile> wanted) {
  const CostOfTile cost = [&](const hip::AlignedTile& tile, const hip::MatrixShape& shape,
                              bool copies_to_lds) {
    return halo_cost(p, tile, shape, copies_to_lds, device);
  };
  const int64_t M = p.N * p.out[1] * p.out[2];
  // A step is one tap of a block of channels.
  const int64_t K = round_up(p.C, halo_block(architecture(device.arch))) * p.taps();
  const auto choose = [&](int64_t rows, std::optional<GemmTile> tile, int64_t splits) {
    return choose_aligned(rows, p.M, K, 1, device, tile, splits, cost);
  };
  const auto all = choose(M, wanted, kMaxSplits);
  if (!all) return std::nullopt;
  HaloTiles best = {*all, std::nullopt};
  for (const hip::AlignedTile& row : hip::kAlignedTiles) {
    if (wanted || row.halo_kernels == hip::Targets::kNone || row.copies_to_lds.m < kMostHaloPixels) continue;
    const auto one = choose(M, row.tile, 1);
    if (!one) continue;
    const int64_t waves = one->tiles() / device.compute_units;
    const int64_t rows = waves * device.compute_units / one->across * one->shape.m;
    if (rows == 0 || rows >= M) continue;
    const auto rest = choose(M - rows, std::nullopt, 1);
    if (!rest) continue;
    const HaloTiles both = {*choose(rows, row.tile, 1), *rest};
    if (both.clocks() < best.clocks()) best = both;
  }
  return best;
}

Plan halo_plan(const ConvolutionProblem& p, const HaloTiles& tiles) {
  Plan plan;
  hip::ConvHaloArgs args = {};
  fill_channels_last(args, p, p.N * p.out[1] * p.out[2], p.M);
  args.C = to_i31(p.C);
  args.H = to_i31(p.in[1]);
  args.W = to_i31(p.in[2]);
  args.taps = make_divisor(p.taps());
  args.kernel_w = make_divisor(p.kernel[2]);
  args.per_image = make_divisor(p.out[1] * p.out[2]);
  args.columns = make_divisor(p.out[2]);
  args.kernel_h = to_i31(p.kernel[1]);
  args.top = to_i31(p.pad[1]);
  args.left = to_i31(p.pad[2]);
  const auto launch = [&](const AlignedTiling& of) {
    args.rows = to_i31(halo_rows(p, of.shape));
    launch_aligned(plan, of.kernel("conv_halo_"), of, 1, static_cast<uint32_t>(halo_lds(p, of.shape)), args);
  };
  launch(tiles.first);
  if (tiles.rest) {
    args.first = to_i31(tiles.first.down * tiles.first.shape.m);
    launch(*tiles.rest);
  }
  return plan;
}

}  // namespace

Plan conv_halo_plan(const ConvolutionProblem& p, const DeviceFacts& device, std::optional<GemmTile> wanted) {
  if (p.N * p.out_size() * p.M == 0) return {};
  to_u31(p.N * p.in[1] * p.in[2]);
  to_u31(p.M * p.C * p.taps());
  auto tiles = choose_halo(p, device, wanted);
  if (!tiles) tiles = choose_halo(p, device, std::nullopt);
  if (!tiles) throw std::invalid_argument("the pixels of a tile do not fit into LDS");
  return halo_plan(p, *tiles);
}

Plan channels_last_conv_plan(const ConvolutionProblem& p, const DeviceFacts& device,
                             std::optional<GemmTile> wanted) {
  Plan plan;
  const int64_t taps = p.kernel[1] * p.kernel[2], pixels = p.N * p.out[1] * p.out[2];
  if (pixels * p.M == 0) return plan;
  to_u31(p.N * p.in[1] * p.in[2]);
  const int64_t M = p.transposed ? p.N * p.in[1] * p.in[2] : pixels, N = p.transposed ? taps * p.M : p.M,
                K = p.transposed ? p.C : p.C * taps;
  to_u31(p.M * K);
  const int64_t most_splits = p.transposed ? 1 : kMaxSplits;
  auto tiling = choose_aligned(M, N, K, 1, device, wanted, most_splits);
  if (!tiling) tiling = choose_aligned(M, N, K, 1, device, std::nullopt, most_splits);
  if (!tiling) throw std::invalid_argument("the device has no matrix units");
  if (!wanted && architecture(device.arch).matrix == hip::Matrix::kMma &&
      refuse_conv_halo(p, device) == nullptr) {
    const auto tiles = choose_halo(p, device, wanted);
    if (tiles && tiles->clocks() < tiling->clocks) return halo_plan(p, *tiles);
  }
  const char* kernel = tiling->kernel(p.transposed ? "conv_disjoint_" : "channels_last_conv_");
  const uint32_t lds = tiling->lds(p.transposed, device);
  if (p.transposed) {
    hip::ConvDisjointArgs args = {};
    fill_channels_last(args, p, M, N);
    args.K = to_i31(K);
    args.down = to_i31(tiling->down);
    args.across = make_divisor(tiling->across);
    args.window_h = to_i31(p.kernel[1]);
    args.window_w = make_divisor(p.kernel[2]);
    args.filters = make_divisor(p.M);
    args.columns = make_divisor(p.in[2]);
    plan.launch(kernel, {to_u31(tiling->tiles())}, tiling->threads, args).lds = lds;
    return plan;
  }
  hip::ChannelsLastConvArgs args = {};
  fill_channels_last(args, p, M, N);
  args.K = to_i31(K);
  args.H = to_i31(p.in[1]);
  args.W = to_i31(p.in[2]);
  args.channels = make_divisor(p.C);
  args.kernel_w = make_divisor(p.kernel[2]);
  args.per_image = make_divisor(p.out[1] * p.out[2]);
  args.columns = make_divisor(p.out[2]);
  args.window = window_of(p);
  launch_aligned(plan, kernel, *tiling, 1, lds, args);
  return plan;
}

namespace {

// A kernel for square windows, equal strides and no dilation. `long_kernel` computes strips of kDepthwiseLongStrip
// pixels.
struct SquareDepthwise {
  int64_t side, stride;
  const char *kernel, *long_kernel;
};
constexpr SquareDepthwise kSquareDepthwise[] = {
    {3, 1, "depthwise_3x3_f16", nullptr},
    {3, 2, "depthwise_3x3_stride_2_f16", nullptr},
    {5, 1, "depthwise_5x5_f16", "depthwise_5x5_long_f16"},
    {5, 2, "depthwise_5x5_stride_2_f16", nullptr},
    {7, 1, "depthwise_7x7_f16", "depthwise_7x7_long_f16"},
    {7, 2, "depthwise_7x7_stride_2_f16", nullptr},
};

const SquareDepthwise* square_depthwise(const ConvolutionProblem& p) {
  for (const SquareDepthwise& square : kSquareDepthwise) {
    const auto is_square = [&](size_t d) {
      return p.kernel[d] == square.side && p.stride[d] == square.stride && p.dilation[d] == 1;
    };
    if (is_square(1) && is_square(2)) return &square;
  }
  return nullptr;
}

constexpr int64_t kPackOfChannels = 8;

// Returns the number of pairs of channels in a block. If the channels form complete packs, blocks are equal and consist
// of complete packs. Their size leaves the fewest work-items of a work-group idle; of several such sizes, it is the
// largest. Otherwise the blocks are as few as possible, and the last one can have fewer pairs.
int64_t depthwise_pairs(int64_t channels) {
  if (channels % kPackOfChannels != 0) {
    const int64_t pairs = channels / 2;
    return divide_up(pairs, divide_up(pairs, int64_t{hip::kDepthwisePairs}));
  }
  constexpr int64_t kStep = kPackOfChannels / 2;  // the weights of a block begin at a multiple of 16 bytes
  const auto busy = [](int64_t pairs) { return hip::kDepthwiseThreads / pairs * pairs; };
  int64_t best = kStep;
  for (int64_t pairs = kStep; pairs <= std::min<int64_t>(channels / 2, hip::kDepthwisePairs);
       pairs += kStep) {
    if (channels / 2 % pairs == 0 && busy(pairs) >= busy(best)) best = pairs;
  }
  return best;
}

}  // namespace

Plan depthwise_plan(const ConvolutionProblem& p, const DeviceFacts& device, std::optional<bool> wants_long) {
  const int64_t channels = p.groups, OH = p.out[1], OW = p.out[2];
  if (p.N * OH * OW * channels == 0) return {};
  const bool is_even = channels % 2 == 0;
  const int64_t pairs = is_even ? depthwise_pairs(channels) : 1, blocks = divide_up(channels / 2, pairs);
  const SquareDepthwise* square = !is_even || blocks > kMaxGrid ? nullptr : square_depthwise(p);
  int64_t strip = hip::kDepthwiseStrip;
  // Long strips are faster if enough work-items remain to hide latencies: a few waves on each SIMD.
  constexpr int64_t kItemsOfUnit = 512;
  const int64_t items = p.N * OH * divide_up(OW, strip) * (channels / 2);
  const bool has_long = square != nullptr && square->long_kernel != nullptr,
             is_long = has_long && wants_long.value_or(items > kItemsOfUnit * device.compute_units);
  if (is_long) strip = hip::kDepthwiseLongStrip;
  const int64_t strips = divide_up(OW, strip), all_strips = p.N * OH * strips;
  to_u31(p.in[1] * p.in[2]);
  to_u31(OH * p.stride[1] + p.span(1));
  to_u31((strips * strip) * p.stride[2] + p.span(2));
  hip::DepthwiseArgs args = {};
  args.x = input(0);
  args.w = input(1);
  args.bias = input(2);
  args.residual = p.has_residual ? input(3) : no_buffer();
  args.y = output(0);
  args.channels = to_u31(channels);
  args.strips = make_divisor(strips);
  args.rows = make_divisor(OH);
  args.H = to_i31(p.in[1]);
  args.W = to_i31(p.in[2]);
  args.OW = to_i31(OW);
  args.window = window_of(p);
  args.act = p.act;
  if (square == nullptr) {
    const int64_t size = channels % kPackOfChannels == 0 ? kPackOfChannels : 1;
    args.block = make_divisor(channels / size);
    args.total = to_u31(all_strips * (channels / size));
    return one_launch(size == 1 ? "depthwise_1_f16" : "depthwise_f16", args.total, hip::kDepthwiseThreads,
                      args);
  }
  args.block = make_divisor(pairs);
  args.strips_per_group = to_u31(hip::kDepthwiseThreads / pairs);
  args.total = to_u31(all_strips);
  return one_launch(is_long ? square->long_kernel : square->kernel,
                    Grid{to_u31(divide_up(all_strips, args.strips_per_group)), to_u31(blocks), 1},
                    hip::kDepthwiseThreads, args);
}

}  // namespace graphopt::gpu
