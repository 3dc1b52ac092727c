#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "operators/convolution/depthwise_args.h"
#include "operators/convolution/direct_args.h"
#include "operators/convolution/op.h"
#include "operators/convolution/product_args.h"

namespace graphopt::gpu {
namespace {

// The outputs of an axis that one launch writes: every one of a convolution, every `stride`-th of a
// transposed one, which are those that the same taps reach.
struct Outputs {
  int64_t count = 0, first = 0, first_tap = 0;
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
  // Y[o] += W[k] X[i] where o = i stride + k dilation - pad: with o = phase + q stride these are the taps k
  // for which phase + pad - k dilation is a multiple of the stride, every stride / g-th.
  const int64_t stride = p.stride[d], dilation = p.dilation[d], g = std::gcd(stride, dilation);
  o.count = p.out[d] > phase ? divide_up(p.out[d] - phase, stride) : 0;
  o.first = phase;
  o.axis.step = 1;
  o.axis.out = to_i31(stride);
  const int64_t apart = stride / g;
  int64_t tap = 0;
  while (tap < apart && (phase + p.pad[d] - tap * dilation) % stride != 0) ++tap;
  if (tap == apart || tap >= p.kernel[d]) return o;
  o.first_tap = tap;
  o.axis.taps = to_i31(divide_up(p.kernel[d] - tap, apart));
  o.axis.first = static_cast<int32_t>((phase + p.pad[d] - tap * dilation) / stride);
  o.axis.tap = -to_i31(dilation / g);
  o.axis.filter = to_i31(apart);
  return o;
}

const char* kernel_of(ProductTile tile, bool half) {
  if (!half) return tile == ProductTile::kLarge ? "conv_128x128_f32" : "conv_64x32_f32";
  return tile == ProductTile::kVector  ? "conv_vector_f16"
         : tile == ProductTile::kLarge ? "conv_128x128_f16"
                                       : "conv_64x64_f16";
}

}  // namespace

Plan convolution_plan(const ConvolutionProblem& p, bool half) {
  Plan plan;
  const int64_t in_plane = p.in_size(), out_plane = p.out_size(), taps = p.taps();
  if (p.N * p.y_channels() * out_plane == 0) return plan;
  for (size_t d = 0; d < kSpatialAxes; ++d) {
    to_u31(p.out[d] * (p.transposed ? 1 : p.stride[d]) + p.pad[d] + p.span(d));  // positions in kernels
  }
  const int64_t filters = p.M < hip::kConvolutionFilters / 2 ? 1 : hip::kConvolutionFilters;
  if (p.groups > kMostGrid || divide_up(p.M, filters) > kMostGrid) {
    throw std::invalid_argument("a convolution of too many groups or channels");
  }
  const char* names[2][2] = {{"convolution_1_f32", "convolution_1_f16"},
                             {"convolution_8_f32", "convolution_8_f16"}};
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
    args.x = input(0);
    args.w = input(1);
    args.bias = p.has_bias ? input(2) : no_buffer();
    args.y = output(0);
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
    plan.launch(names[filters == 1 ? 0 : 1][half],
                {to_u31(divide_up(args.pixels, group)), to_u31(divide_up(p.M, filters)), to_u31(p.groups)},
                hip::kConvolutionThreads, args);
  }
  return plan;
}

Plan conv_plan(const ConvolutionProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<ProductTile> wanted) {
  Plan plan;
  const int64_t H = p.in[1], W = p.in[2], OH = p.out[1], OW = p.out[2], pixels = p.N * OH * OW;
  if (pixels * p.y_channels() == 0) return plan;
  const int64_t taps = p.kernel[1] * p.kernel[2], pack = half ? 8 : 4;
  to_u31(H * W);
  const int64_t K = to_u31(p.C * taps);
  const TileOfProduct tile = choose_tile(p.M, pixels, p.groups, half, device, wanted);
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
  plan.launch(kernel_of(tile.tile, half),
              {to_u31(divide_up(pixels, tile.n)), to_u31(divide_up(p.M, tile.m)), to_u31(p.groups)},
              tile.threads, args);
  return plan;
}

Plan depthwise_plan(const ConvolutionProblem& p) {
  Plan plan;
  const int64_t channels = p.groups, packs = channels / 8, OH = p.out[1], OW = p.out[2],
                strips = divide_up(OW, hip::kDepthwiseStrip), total = p.N * OH * strips * packs;
  if (total == 0) return plan;
  to_u31(p.in[1] * p.in[2]);
  to_u31(OH * p.stride[1] + p.span(1));
  to_u31((strips * hip::kDepthwiseStrip) * p.stride[2] + p.span(2));
  hip::DepthwiseArgs args = {};
  args.x = input(0);
  args.w = input(1);
  args.bias = input(2);
  args.residual = p.has_residual ? input(3) : no_buffer();
  args.y = output(0);
  args.total = to_u31(total);
  args.channels = to_u31(channels);
  args.packs = make_divisor(packs);
  args.strips = make_divisor(strips);
  args.rows = make_divisor(OH);
  args.H = to_i31(p.in[1]);
  args.W = to_i31(p.in[2]);
  args.OW = to_i31(OW);
  args.window = {to_i31(p.kernel[1]), to_i31(p.kernel[2]), to_i31(p.stride[1]),   to_i31(p.stride[2]),
                 to_i31(p.pad[1]),    to_i31(p.pad[2]),    to_i31(p.dilation[1]), to_i31(p.dilation[2])};
  args.act = p.act;
  const bool square = p.kernel[1] == 3 && p.kernel[2] == 3;
  plan.launch(square ? "depthwise_3x3_f16" : "depthwise_f16",
              {to_u31(divide_up(total, hip::kDepthwiseThreads))}, hip::kDepthwiseThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
