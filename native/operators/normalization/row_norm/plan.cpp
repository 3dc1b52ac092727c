#include <algorithm>

#include "operators/normalization/row_norm/args.h"
#include "operators/normalization/row_norm/op.h"

namespace graphopt {

hip::RowWindows row_windows(int64_t height, int64_t width, int64_t window_height, int64_t window_width,
                            int64_t down, int64_t right) {
  const int64_t above = gpu::divide_up(height, window_height), across = gpu::divide_up(width, window_width);
  const int64_t window = window_height * window_width;
  hip::RowWindows w;
  w.height = gpu::to_u31(height);
  w.width = gpu::to_u31(width);
  w.padded_height = gpu::to_u31(above * window_height);
  w.padded_width = gpu::to_u31(across * window_width);
  w.down = gpu::to_u31(down);
  w.right = gpu::to_u31(right);
  w.image = gpu::make_divisor(height * width);
  w.padded_image = gpu::make_divisor(above * across * window);
  w.line = gpu::make_divisor(width);
  w.window_height = gpu::make_divisor(window_height);
  w.window_width = gpu::make_divisor(window_width);
  w.window = gpu::make_divisor(window);
  w.windows_across = gpu::make_divisor(across);
  return w;
}

namespace gpu {

namespace {

struct Rows {
  int64_t row_items, group_rows;  // work-items of a row, rows of a work-group
};

// Distributes rows of `vectors` vectors to work-groups.
Rows rows_of_groups(int64_t rows, int64_t vectors, const DeviceFacts& device) {
  const int64_t wave = device.wave;
  if (vectors > wave * hip::kRowNormVectors) {
    // Two vectors per work-item keep enough loads in flight.
    return {std::min<int64_t>(round_up(divide_up(vectors, 2), wave), hip::kRowNormMaxThreads), 1};
  }
  int64_t row_items = 1;
  while (row_items < std::min(vectors, wave)) row_items *= 2;
  // Work-groups have several waves only if there are enough rows for two such work-groups per compute unit.
  constexpr int64_t kThreads = 128;
  const bool are_many = rows * row_items / kThreads >= 2 * device.compute_units;
  return {row_items, (are_many ? kThreads : wave) / row_items};
}

}  // namespace

Plan row_norm_plan(const RowNormProblem& p, bool half, bool aligned, const DeviceFacts& device) {
  Plan plan;
  if (p.rows * p.D == 0) return plan;
  const int64_t pack = half ? 8 : 4;
  const uint8_t gamma = p.has_residual ? 2 : 1;
  const bool registers =
      aligned && p.D % pack == 0 && p.D / pack <= hip::kRowNormMaxThreads * hip::kRowNormVectors;
  const Rows rows = rows_of_groups(p.rows, p.D / pack, device);
  const char* name = float_kernel(
      kernel_name({"row_norm", p.order != RowOrder::kImages ? "_windows" : "", registers ? "" : "_any"}),
      half);
  const auto block =
      static_cast<uint32_t>(registers ? rows.group_rows * rows.row_items : hip::kRowNormAnyThreads);
  const int64_t group_rows = registers ? rows.group_rows : 1;
  hip::RowNormArgs args = {};
  args.gamma = input(gamma);
  args.beta = p.rms || !p.has_beta ? no_buffer() : input(static_cast<uint8_t>(gamma + 1));
  args.D = to_u31(p.D);
  args.epsilon = p.epsilon;
  args.rms = p.rms;
  args.row_items = make_divisor(registers ? rows.row_items : block);
  args.group_rows = to_u31(group_rows);
  args.image = make_divisor(p.images == 1 ? 1 : p.rows / p.images);
  args.rows = p.writes_statistics ? to_u31(p.rows) : 0;
  args.gamma_step = p.images == 1 ? 0 : to_u31(p.D);
  if (p.images != 1) to_u31(p.rows);
  args.windows = p.windows;
  args.into = p.order == RowOrder::kIntoWindows;
  const bool moves_x = args.into != 0 && !p.has_residual, moves_y = args.into != 0 && p.has_residual;
  const int64_t bytes = (half ? 2 : 4) * p.D;
  for_each_launch(divide_up(p.rows, group_rows), block, [&](int64_t first_group, uint32_t groups) {
    const int64_t first = first_group * group_rows;
    args.count = to_u31(std::min(p.rows - first, groups * group_rows));
    args.first_row = p.images == 1 && p.order == RowOrder::kImages ? 0 : static_cast<uint32_t>(first);
    args.x = offset_by(input(0), moves_x ? 0 : first * bytes);
    args.residual = offset_by(p.has_residual ? input(1) : no_buffer(),
                              p.order == RowOrder::kFromWindows ? 0 : first * bytes);
    args.y = offset_by(output(0), moves_y ? 0 : first * bytes);
    args.sum = offset_by(p.writes_sum ? output(1) : no_buffer(), first * bytes);
    args.statistics = offset_by(p.writes_statistics ? output(2) : no_buffer(), first * 4);
    plan.launch(name, {groups}, block, args);
  });
  return plan;
}

}  // namespace gpu
}  // namespace graphopt
