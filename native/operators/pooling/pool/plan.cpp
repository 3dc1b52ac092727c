#include "blocks/gpu/channels_last_plan.h"
#include "operators/pooling/pool/op.h"

namespace graphopt::gpu {

Plan pool_plan(const PoolProblem& p, ElementType type, bool aligned) {
  const int64_t per_slice = p.out[1] * p.out[2], per_plane = p.out[0] * per_slice,
                total = p.planes * per_plane;
  if (total == 0) return {};
  hip::PoolArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(total);
  args.plane = to_u31(int64_t{p.axes[0].in} * p.axes[1].in * p.axes[2].in);
  args.per_plane = make_divisor(per_plane);
  args.per_slice = make_divisor(per_slice);
  args.across = make_divisor(p.out[2]);
  for (size_t d = 0; d < kSpatialAxes; ++d) args.axes[d] = p.axes[d];
  args.mode = p.mode;
  const char* suffix = type == ElementType::kHalf    ? "_f16"
                       : type == ElementType::kInt8  ? "_i8"
                       : type == ElementType::kUint8 ? "_u8"
                                                     : "_f32";
  const bool together = aligned && p.out[2] % hip::kPoolOutputsPerItem == 0;
  return one_launch(kernel_name({together ? "pool_together" : "pool", suffix}),
                    together ? total / hip::kPoolOutputsPerItem : total, hip::kPoolThreads, args);
}

namespace {

// Returns the same problem with the channels as the last spatial axis, so that pool_plan() can compute it.
PoolProblem over_pixels(const PoolProblem& p, int64_t channels) {
  PoolProblem result = p;
  for (size_t d = 0; d + 1 < kSpatialAxes; ++d) {
    result.axes[d] = p.axes[d + 1];
    result.out[d] = p.out[d + 1];
  }
  const int32_t size = to_i31(channels);
  result.axes[kSpatialAxes - 1] = {size, 1, 1, 0, 1, size};
  result.out[kSpatialAxes - 1] = channels;
  return result;
}

}  // namespace

Plan pool_channels_last_plan(const PoolProblem& p, ElementType type, int64_t channels, bool aligned) {
  const bool bytes = is_byte(type);
  if (bytes && !(aligned && channels % hip::kPoolBytes == 0))
    return pool_plan(over_pixels(p, channels), type, aligned);
  hip::PoolChannelsLastArgs args = {};
  const bool wide =
      fill_channels_last(args, p.planes, p.out[1], p.out[2], channels, aligned, bytes ? hip::kPoolBytes : 8);
  if (args.total == 0) return {};
  to_u31(int64_t{p.axes[1].in} * p.axes[2].in * channels);  // throws if an image of X is too large
  for (size_t d = 0; d < 2; ++d) args.axes[d] = p.axes[1 + d];
  args.mode = p.mode;
  const char* name = type == ElementType::kUint8  ? "max_pool_channels_last_u8"
                     : type == ElementType::kInt8 ? "max_pool_channels_last_i8"
                     : wide                       ? "pool_channels_last_8_f16"
                                                  : "pool_channels_last_1_f16";
  return one_launch(name, args.total, hip::kPoolThreads, args);
}

Plan lrn_plan(const LrnProblem& p, bool half, bool aligned) {
  const int64_t total = p.images * p.channels * p.inner;
  if (total == 0) return {};
  hip::LrnArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(total);
  args.inner = make_divisor(p.inner);
  args.channels = make_divisor(p.channels);
  args.before = to_i31((p.size - 1) / 2);
  args.after = to_i31(p.size / 2);
  args.scale = p.alpha / static_cast<float>(p.size);
  args.beta = p.beta;
  args.bias = p.bias;
  const bool together = aligned && p.inner % hip::kPoolOutputsPerItem == 0;
  return one_launch(float_kernel(together ? "lrn_together" : "lrn", half),
                    together ? total / hip::kPoolOutputsPerItem : total, hip::kPoolThreads, args);
}

}  // namespace graphopt::gpu
