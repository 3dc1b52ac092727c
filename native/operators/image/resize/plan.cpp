#include <algorithm>
#include <cmath>

#include "blocks/gpu/channels_last_plan.h"
#include "operators/image/resize/args.h"
#include "operators/image/resize/op.h"

namespace graphopt::gpu {
namespace {

hip::SourceAxis source_axis(const ResizeAxis& axis, Coordinates coordinates) {
  const auto in = static_cast<float>(axis.in), out = static_cast<float>(axis.out);
  hip::SourceAxis a = {};
  a.in = axis.in;
  a.out = axis.out;
  a.crop = a.span = 1;
  a.step = axis.scale;
  switch (coordinates) {
    case Coordinates::kHalfPixelSymmetric:
      a.before = in / 2 * (1 - out / (axis.scale * in));
      a.shift = 0.5f;
      a.after = -0.5f;
      break;
    case Coordinates::kPytorchHalfPixel:
      if (axis.out <= 1) break;
      [[fallthrough]];
    case Coordinates::kHalfPixel:
      a.shift = 0.5f;
      a.after = -0.5f;
      break;
    case Coordinates::kAlignCorners:
      a.span = in - 1;
      a.step = out - 1;
      break;
    case Coordinates::kCrop:
      a.before = axis.out <= 1 ? 0.5f * (axis.first + axis.last) * (in - 1) : axis.first * (in - 1);
      a.crop = axis.last - axis.first;
      a.span = in - 1;
      a.step = out - 1;
      break;
    case Coordinates::kAsymmetric:
      break;
  }
  // `step` is 0 if there is a single output element. Its position is the first input element or, for a crop, the centre
  // of the crop, whatever the step.
  if (a.step == 0) a.step = 1;
  a.inverse = 1 / a.step;
  return a;
}

}  // namespace

Plan resize_plan(const ResizeProblem& p, bool half, bool aligned, std::optional<int64_t> rows_each) {
  const int64_t total = p.planes * p.rows.out * p.columns.out;
  if (total == 0) return {};
  to_u31(p.planes * p.rows.in * p.columns.in);
  to_u31(total);
  // A work-item computes several rows only if enough work-items for an entire GPU remain.
  constexpr int64_t kMinItems = int64_t{1} << 17;
  const int64_t pack = half ? 8 : 4, across = divide_up(p.columns.out, pack),
                max_rows = p.planes * across * p.rows.out / kMinItems,
                each = rows_each.value_or(max_rows >= 8   ? 8
                                          : max_rows >= 4 ? 4
                                                          : 1),
                down = divide_up(p.rows.out, each);
  hip::ResizeArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.items = to_u31(p.planes * across * down);
  args.across = make_divisor(across);
  args.down = make_divisor(down);
  args.rows_each = static_cast<int32_t>(each);
  args.uses_packs = aligned && p.columns.out % pack == 0;
  args.rows = source_axis(p.rows, p.coordinates);
  args.columns = source_axis(p.columns, p.coordinates);
  args.mode = p.mode;
  return one_launch(float_kernel("resize", half), args.items, hip::kResizeThreads, args);
}

Plan resize_channels_last_plan(const ResizeProblem& p, int64_t channels, bool aligned) {
  hip::ResizeChannelsLastArgs args = {};
  const bool wide = fill_channels_last(args, p.planes, p.rows.out, p.columns.out, channels, aligned);
  if (args.total == 0) return {};
  to_u31(int64_t{p.rows.in} * p.columns.in * channels);
  args.rows = source_axis(p.rows, p.coordinates);
  args.columns = source_axis(p.columns, p.coordinates);
  args.mode = p.mode;
  return one_launch(wide ? "resize_channels_last_8_f16" : "resize_channels_last_1_f16", args.total,
                    hip::kResizeThreads, args);
}

Plan resize_one_plan(const ResizeOneProblem& p) {
  const int64_t total = p.outer * p.axis.out * p.inner;
  if (total == 0) return {};
  to_u31(p.outer * p.axis.in * p.inner);
  const bool interpolates = p.mode == Interpolation::kLinear || p.mode == Interpolation::kCubic,
             wide = interpolates && p.antialias && p.axis.scale < 1;
  const float reach = p.mode == Interpolation::kCubic ? 2.0f : 1.0f;
  hip::ResizeOneArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.outside = p.outside;
  args.total = to_u31(total);
  args.inner = make_divisor(p.inner);
  args.out = make_divisor(p.axis.out);
  args.axis = source_axis(p.axis, p.coordinates);
  args.mode = p.mode;
  args.cubic = p.cubic;
  args.narrow = wide ? p.axis.scale : 1.0f;
  args.reach = static_cast<int32_t>(std::min(std::ceil(reach / args.narrow), 2.0f * p.axis.in + 4.0f));
  args.inside_only = p.inside_only;
  args.crops = p.coordinates == Coordinates::kCrop;
  args.normalized = p.inside_only || p.antialias;
  const char* kernel = nullptr;
  if (interpolates) {
    kernel = p.half_in ? (p.half_out ? "resize_interpolate_f16" : "resize_interpolate_f16_f32")
                       : (p.half_out ? "resize_interpolate_f32_f16" : "resize_interpolate_f32");
  } else {
    kernel = bits_kernel("resize_nearest", p.bytes);
  }
  return one_launch(kernel, total, hip::kResizeThreads, args);
}

}  // namespace graphopt::gpu
