#include <algorithm>
#include <stdexcept>

#include "blocks/gpu/walk_plan.h"
#include "operators/matmul/integer_matmul/args.h"
#include "operators/matmul/integer_matmul/op.h"

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

Plan integer_matmul_plan(const GemmProblem& p, const IntegerProblem& integers) {
  Plan plan;
  if (p.M * p.N * p.batch.elements() == 0) return plan;
  Walk walk(p.batch, {p.a_batch, p.b_batch});
  walk.simplify();
  hip::IntegerMatmulArgs args = {};
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
  const char* name = bits_kernel("integer_matmul", bytes);
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
  plan.launch("integer_window_matmul", tiles(p.M, p.out_size(), images), hip::kIntegerThreads, args);
  return plan;
}

Plan integer_lines_plan(const IntegerLines& p) {
  if (p.matrices * p.lines == 0) return {};
  const int64_t groups = divide_up(p.lines, hip::kIntegerTile);
  hip::IntegerLinesArgs args = {};
  args.x = input(0);
  args.packed = output(0);
  args.sums = output(1);
  args.lines = to_i31(p.lines);
  args.K = to_i31(p.K);
  args.row = to_i31(p.row());
  args.line = p.transposed ? 1 : to_i31(p.K * p.taps);
  args.k = p.transposed ? args.lines : p.taps_first ? 1 : to_i31(p.taps);
  args.tap = p.taps_first ? args.K : 1;
  args.matrix = p.matrices > 1 ? to_i31(p.lines * p.K * p.taps) : 0;
  args.tap_bytes = make_divisor(p.row() / p.taps);
  args.inverted_bits = p.is_signed ? 0 : hip::kUnsignedBits;
  args.groups = make_divisor(groups);
  return one_launch("integer_lines", Grid{to_u31(p.matrices * groups)}, hip::kIntegerThreads, args);
}

int64_t IntegerColumnsProblem::bytes() const {
  return static_cast<int64_t>(sizeof(hip::IntegerColumnsHeader)) +
         matrices * round_up(columns, hip::kIntegerPack) * hip::kIntegerArrays * 4;
}

Plan integer_columns_plan(const IntegerColumnsProblem& p) {
  const int64_t padded = round_up(p.columns, hip::kIntegerPack), total = p.matrices * padded;
  if (total == 0) return {};
  const bool to_bytes = is_byte(p.y);
  hip::IntegerColumnsArgs args = {};
  args.sums = input(0);
  args.bias = p.has_bias ? input(1) : no_buffer();
  args.left_zero = p.left_zero.given ? input(2) : no_buffer();
  args.right_zero = p.right_zero.given ? input(3) : no_buffer();
  args.left_scale = p.has_scales ? input(4) : no_buffer();
  args.right_scale = p.has_scales ? input(5) : no_buffer();
  args.y_scale = to_bytes ? input(6) : no_buffer();
  args.y_zero = p.has_y_zero ? input(7) : no_buffer();
  args.columns = output(0);
  args.total = to_u31(total);
  args.N = to_i31(p.columns);
  args.K = to_i31(p.K);
  args.padded = make_divisor(padded);
  args.left_signed = p.left == ElementType::kInt8;
  args.right_signed = p.right == ElementType::kInt8;
  args.y_signed = p.y == ElementType::kInt8;
  args.bias_step = p.many_biases;
  args.right_zero_step = p.right_zero.many;
  args.right_scale_step = p.right_scales;
  args.is_float_bias = p.float_bias;
  args.has_activation = p.act.kind != ActivationKind::kNone && p.act.kind != ActivationKind::kRelu;
  args.alpha = p.alpha;
  return one_launch("integer_columns", total, hip::kIntegerThreads, args);
}

bool has_integer_gemm(const DeviceFacts& device) {
  return architecture(device.arch).matrix != hip::Matrix::kNone;
}

namespace {

hip::IntegerEpilogue epilogue_of(const IntegerColumnsProblem& p, bool unsigned_left) {
  hip::IntegerEpilogue e = {};
  e.output = p.y == ElementType::kInt32   ? hip::IntegerOutput::kInt32
             : p.y == ElementType::kFloat ? hip::IntegerOutput::kFloat
             : p.y == ElementType::kInt8  ? hip::IntegerOutput::kInt8
                                          : hip::IntegerOutput::kUint8;
  e.columns = to_i31(round_up(p.columns, hip::kIntegerPack));
  e.whole_packs = p.columns % hip::kIntegerPack == 0;
  e.inverted_bits = unsigned_left ? hip::kUnsignedBits : 0;
  e.act = p.act;
  e.sum = p.sum;
  return e;
}

template <class Args>
void fill_epilogue(Args& args, const IntegerColumnsProblem& p, bool unsigned_left) {
  args.residual = p.sum.kind != hip::IntegerResidual::kNone ? input(3) : no_buffer();
  args.table = p.has_table ? input(4) : no_buffer();
  args.epilogue = epilogue_of(p, unsigned_left);
}

// Sets the arguments that depend on the tiling and adds the launch of the kernel. If K is split, a second launch adds
// the partial sums. `sum`: the arguments of that launch, of which only the row sums and the batch are set.
template <class Args>
void launch_integer(Plan& plan, const char* prefix, const AlignedTiling& tiling, int64_t batch,
                    const DeviceFacts& device, Args& args, hip::IntegerSumArgs sum) {
  args.partial = tiling.splits > 1 ? workspace(0) : no_buffer();
  args.down = to_i31(tiling.down);
  args.across = make_divisor(tiling.across);
  args.splits = {make_divisor(tiling.splits), to_i31(tiling.depth)};
  const char* name = kernel_name({prefix, tiling.size, "_i8"});
  const Grid grid = {to_u31(tiling.tiles()), 1, to_u31(batch * tiling.splits)};
  plan.launch(name, grid, tiling.threads, args).lds = tiling.lds(false, device);
  if (tiling.splits == 1) return;
  const int64_t M = args.M, N = args.N, across = divide_up(N, hip::kIntegerPack), packs = across * M * batch;
  plan.workspace = {batch * tiling.splits * M * N * 4};
  sum.partial = workspace(0);
  sum.columns = args.columns;
  sum.residual = args.residual;
  sum.table = args.table;
  sum.y = args.y;
  sum.N = args.N;
  sum.splits = to_i31(tiling.splits);
  sum.packs = to_u31(packs);
  sum.across = make_divisor(across);
  sum.rows = make_divisor(M);
  sum.epilogue = args.epilogue;
  plan.launch_items("integer_gemm_sum", packs, hip::kIntegerSumThreads, sum);
}

// Bytes of LDS of a multiprocessor, and those that the device adds to each work-group: CUDA's tuning guide for Hopper.
constexpr int64_t kLdsOfUnit = 228 << 10, kLdsOfGroup = 1 << 10;

// The work-groups of a kernel for warpgroups.
struct IntegerWarpgroupGrid {
  const hip::IntegerWarpgroupTile* tile = nullptr;
  int64_t down = 0, across = 0, work_groups = 0;
  uint32_t lds = 0;
  double clocks = 0;  // estimated clocks of the busiest compute unit
};

// Returns `wanted` if it is an aligned tile.
std::optional<GemmTile> aligned_tile(std::optional<GemmTile> wanted) {
  return wanted && hip::has_row(hip::kAlignedTiles, *wanted) ? wanted : std::nullopt;
}

// Selects the tile with the fewest estimated clocks, or `wanted`. Returns no value if there is none for the problem, or
// if the estimate of `tiling` is lower and no tile is wanted.
std::optional<IntegerWarpgroupGrid> choose_integer_warpgroups(int64_t M, int64_t K,
                                                              const IntegerColumnsProblem& p,
                                                              const DeviceFacts& device,
                                                              std::optional<GemmTile> wanted,
                                                              const std::optional<AlignedTiling>& tiling) {
  const Architecture& arch = architecture(device.arch);
  const bool nvidia = arch.matrix == hip::Matrix::kMma;
  const bool simple = is_byte(p.y) && !p.has_table && p.sum.kind != hip::IntegerResidual::kToExact &&
                      (p.act.kind == ActivationKind::kNone || p.act.kind == ActivationKind::kRelu);
  if (!has_nvidia_kernels(arch) || !simple || p.columns % (2 * hip::kIntegerPack) != 0 || M * K == 0)
    return std::nullopt;
  const bool adds = p.sum.kind != hip::IntegerResidual::kNone;
  std::optional<IntegerWarpgroupGrid> best;
  for (const hip::IntegerWarpgroupTile& tile : hip::kIntegerWarpgroupTiles) {
    if (!hip::runs_on(tile.targets, nvidia) || (wanted && *wanted != tile.tile)) continue;
    IntegerWarpgroupGrid grid = {&tile, divide_up(M, tile.m), divide_up(p.columns, tile.n)};
    grid.lds = static_cast<uint32_t>(tile.lds_bytes(adds));
    const int64_t groups = std::min<int64_t>(tile.groups_per_unit, kLdsOfUnit / (grid.lds + kLdsOfGroup));
    const int64_t tiles = grid.down * grid.across;
    grid.work_groups = std::min(tiles, groups * device.compute_units);
    const double steps = static_cast<double>(divide_up(K, 64));
    const auto rounds = static_cast<double>(divide_up(tiles, device.compute_units));
    grid.clocks = std::max(rounds * (steps * tile.step + tile.overhead), steps * tile.lone_step);
    if (!best || grid.clocks < best->clocks) best = grid;
  }
  const bool wins = best && (wanted || !tiling || best->clocks < tiling->clocks);
  return wins ? best : std::nullopt;
}

// Adds the launch of a kernel for warpgroups. `args` has the members of a convolution.
void launch_integer_warpgroups(Plan& plan, bool is_conv, bool unsigned_left, const IntegerWarpgroupGrid& grid,
                               const IntegerColumnsProblem& p, const DeviceFacts& device,
                               hip::IntegerWarpgroupArgs& args) {
  args.x = input(0);
  args.w = input(1);
  args.columns = input(2);
  args.y = output(0);
  fill_epilogue(args, p, false);
  args.tiles = to_i31(grid.down * grid.across);
  args.work_groups = to_i31(grid.work_groups);
  args.across = make_divisor(grid.across);
  const char* name = kernel_name(
      {"integer_warpgroups_", is_conv ? "conv_" : "gemm_", grid.tile->name, unsigned_left ? "_u8" : "_i8"});
  Launch& launch =
      plan.launch(name, {to_u31(grid.work_groups)}, static_cast<uint32_t>(grid.tile->threads()), args);
  if (architecture(device.arch).matrix == hip::Matrix::kMma) launch.lds = grid.lds;
}

hip::ConvWindow window_of(const ConvolutionProblem& p) {
  return {to_i31(p.kernel[1]), to_i31(p.kernel[2]), to_i31(p.stride[1]),   to_i31(p.stride[2]),
          to_i31(p.pad[1]),    to_i31(p.pad[2]),    to_i31(p.dilation[1]), to_i31(p.dilation[2])};
}

}  // namespace

Plan integer_gemm_plan(const GemmProblem& p, const IntegerColumnsProblem& columns, bool has_row_sums,
                       bool unsigned_left, const DeviceFacts& device, std::optional<GemmTile> wanted) {
  Plan plan;
  if (p.M * p.N * p.batch.elements() == 0) return plan;
  Walk walk(p.batch, {p.a_batch, p.b_batch});
  walk.simplify();
  const int64_t K = round_up(p.K, 16) / 2;  // pairs of elements
  const int64_t batch = walk.total();
  const auto tiling = choose_aligned(p.M, p.N, K, batch, device, aligned_tile(wanted), kMaxSplits, int8_cost);
  if (batch == 1 && !has_row_sums) {
    const auto warpgroups = choose_integer_warpgroups(p.M, K, columns, device, wanted, tiling);
    if (warpgroups) {
      hip::IntegerWarpgroupArgs args = {};
      args.M = to_i31(p.M);
      args.N = to_i31(p.N);
      args.K = to_i31(K);
      launch_integer_warpgroups(plan, false, unsigned_left, *warpgroups, columns, device, args);
      return plan;
    }
  }
  if (!tiling || batch * tiling->splits > kMaxGrid) {
    throw std::invalid_argument("a matrix multiplication with too many matrices");
  }
  hip::IntegerGemmArgs args = {};
  args.a = input(0);
  args.b = input(1);
  args.columns = input(2);
  args.row_sums = has_row_sums ? input(3) : no_buffer();
  fill_epilogue(args, columns, unsigned_left);
  args.y = output(0);
  args.M = to_i31(p.M);
  args.N = to_i31(p.N);
  args.K = to_i31(K);
  args.batch = walk.axes();
  args.a_batch = walk.strides(0);
  args.b_batch = walk.strides(1);
  hip::IntegerSumArgs sum = {};
  sum.row_sums = args.row_sums;
  sum.batch = args.batch;
  sum.a_batch = args.a_batch;
  sum.b_batch = args.b_batch;
  launch_integer(plan, "integer_gemm_", *tiling, batch, device, args, sum);
  return plan;
}

ConvolutionProblem with_merged_groups(ConvolutionProblem p) {
  constexpr int64_t kColumns = 32;  // of the smallest tile
  int64_t count = 1;
  if (p.groups > 1) {
    while (count < p.groups && (p.groups % count != 0 || count * p.C % 16 != 0 ||
                                count * p.M % hip::kIntegerPack != 0 || count * p.M < kColumns)) {
      ++count;
    }
  }
  p.groups /= count;
  p.C *= count;
  p.M *= count;
  return p;
}

std::vector<uint8_t> pack_filters_of_groups(const ConvolutionProblem& p, const uint8_t* w, bool channels_last,
                                            bool is_signed) {
  const ConvolutionProblem merged = with_merged_groups(p);
  const int64_t C = round_up(merged.C, 16), taps = p.taps(), count = merged.M / p.M;
  std::vector<uint8_t> packed(static_cast<size_t>(p.y_channels() * taps * C));
  for (int64_t m = 0; m < p.y_channels(); ++m) {
    const int64_t first = m / p.M % count * p.C;  // channel of the merged group
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t c = 0; c < p.C; ++c) {
        const int64_t from = channels_last ? (m * taps + tap) * p.C + c : (m * p.C + c) * taps + tap;
        const int64_t to = (m * taps + tap) * C + first + c;
        packed[static_cast<size_t>(to)] = static_cast<uint8_t>(w[from] ^ (is_signed ? 0 : 0x80));
      }
    }
  }
  return packed;
}

const char* refuse_integer_conv(const ConvolutionProblem& p, const DeviceFacts& device) {
  if (!has_integer_gemm(device)) return "the device has no matrix units";
  if (p.in[0] != 1 || p.kernel[0] != 1 || p.out[0] != 1) return "three spatial axes";
  if (p.kernel[1] > hip::kChannelsLastConvTaps || p.kernel[2] > hip::kChannelsLastConvTaps)
    return "the kernel is too large";
  return nullptr;
}

namespace {

hip::IntegerConvArgs conv_args(const ConvolutionProblem& p, const IntegerColumnsProblem& columns,
                               int64_t pixel) {
  const int64_t C = round_up(p.C, 16) / 2;  // pairs of elements
  to_u31(p.N * p.in[1] * p.in[2]);
  hip::IntegerConvArgs args = {};
  args.x = input(0);
  args.w = input(1);
  args.columns = input(2);
  args.y = output(0);
  args.M = to_i31(p.N * p.out[1] * p.out[2]);
  args.N = to_i31(p.y_channels());
  args.filters = make_divisor(p.M);
  args.K = to_i31(C * p.kernel[1] * p.kernel[2]);
  args.H = to_i31(p.in[1]);
  args.W = to_i31(p.in[2]);
  args.channels = make_divisor(C);
  args.kernel_w = make_divisor(p.kernel[2]);
  args.per_image = make_divisor(p.out[1] * p.out[2]);
  args.columns_of_y = make_divisor(p.out[2]);
  args.window = window_of(p);
  args.pixel = to_i31(pixel);
  fill_epilogue(args, columns, columns.left == ElementType::kUint8);
  return args;
}

// The waves of a work-group of direct.hip, and the columns of Y of a wave.
struct DirectShape {
  int64_t waves, columns;

  explicit DirectShape(const Architecture& arch)
      : waves(hip::kIntegerDirectThreads / arch.wave),
        // For each 16 x 16 tile, a work-item of the emulator has 256 / arch.wave adjacent sums. A work-item stores
        // kIntegerPack adjacent sums; a wave therefore computes arch.wave / 32 tiles of a row.
        columns(arch.matrix == hip::Matrix::kMma ? 32 : arch.wave / 2) {}
};

// Returns whether a convolution is a matrix multiplication of the pixels of X.
bool is_gemm(const ConvolutionProblem& p) {
  return p.groups == 1 && p.taps() == 1 && p.stride[1] * p.stride[2] == 1 &&
         p.pad == ConvolutionProblem().pad && p.in == p.out;
}

}  // namespace

Plan integer_conv_plan(const ConvolutionProblem& given, const IntegerColumnsProblem& columns,
                       const DeviceFacts& device, std::optional<GemmTile> wanted) {
  const ConvolutionProblem p = with_merged_groups(given);
  if (is_gemm(p)) {
    GemmProblem gemm;
    gemm.M = p.N * p.out_size();
    gemm.N = p.M;
    gemm.K = p.C;
    return integer_gemm_plan(gemm, columns, false, columns.left == ElementType::kUint8, device, wanted);
  }
  Plan plan;
  if (p.N * p.out[1] * p.out[2] * p.M == 0) return plan;
  hip::IntegerConvArgs args = conv_args(p, columns, p.groups * round_up(p.C, 16));
  // Partial sums do not have groups, so K is not split for convolutions with groups.
  auto tiling = choose_aligned(args.M, p.M, args.K, p.groups, device, aligned_tile(wanted),
                               p.groups == 1 ? kMaxSplits : 1, int8_cost);
  if (p.groups == 1) {
    const auto warpgroups = choose_integer_warpgroups(args.M, args.K, columns, device, wanted, tiling);
    if (warpgroups) {
      hip::IntegerWarpgroupArgs of = {};
      of.M = args.M;
      of.N = args.N;
      of.K = args.K;
      of.H = args.H;
      of.W = args.W;
      of.pixel = args.pixel;
      of.channels = args.channels;
      of.kernel_w = args.kernel_w;
      of.per_image = args.per_image;
      of.columns_of_y = args.columns_of_y;
      of.window = args.window;
      launch_integer_warpgroups(plan, true, columns.left == ElementType::kUint8, *warpgroups, columns, device,
                                of);
      return plan;
    }
  }
  if (!tiling) throw std::invalid_argument("the device has no matrix units");
  args.tiles = make_divisor(tiling->across);
  tiling->across *= p.groups;
  launch_integer(plan, "integer_conv_", *tiling, 1, device, args, {});
  return plan;
}

bool has_integer_conv_direct(const DeviceFacts& device) {
  const hip::Matrix matrix = architecture(device.arch).matrix;
  return matrix == hip::Matrix::kMma || matrix == hip::Matrix::kEmulated;
}

bool prefers_integer_conv_direct(const ConvolutionProblem& given, const DeviceFacts& device) {
  const ConvolutionProblem p = with_merged_groups(given);
  if (!has_integer_conv_direct(device) || p.groups == 1) return false;
  const DirectShape shape(architecture(device.arch));
  const int64_t rows = divide_up(p.N * p.out_size(), 16 * hip::kIntegerDirectTiles);
  return rows * p.groups * divide_up(p.M, shape.columns) >= shape.waves * device.compute_units;
}

Plan integer_conv_direct_plan(const ConvolutionProblem& given, const IntegerColumnsProblem& columns,
                              const DeviceFacts& device) {
  const ConvolutionProblem p = with_merged_groups(given);
  if (!has_integer_conv_direct(device)) throw std::invalid_argument("the device has no direct int8 kernel");
  if (p.N * p.out[1] * p.out[2] * p.M == 0) return {};
  const DirectShape shape(architecture(device.arch));
  hip::IntegerConvArgs args = conv_args(p, columns, p.x_channels());
  args.partial = no_buffer();
  const int64_t rows = divide_up(args.M, 16 * hip::kIntegerDirectTiles);
  const int64_t tiles = divide_up(p.M, shape.columns), across = p.groups * tiles;
  args.tiles = make_divisor(tiles);
  args.across = make_divisor(across);
  return one_launch("integer_conv_direct", Grid{to_u31(divide_up(rows * across, shape.waves))},
                    hip::kIntegerDirectThreads, args);
}

namespace {

// Returns the number of pixels by which space_to_depth increases the padding before X, a multiple of the stride in
// the result. It is also the offset of the first tap in its block.
int64_t shift_of(const ConvolutionProblem& p, size_t axis) {
  return round_up(p.pad[axis], p.stride[axis]) - p.pad[axis];
}

}  // namespace

std::optional<ConvolutionProblem> space_to_depth(const ConvolutionProblem& p) {
  const bool images = p.in[0] == 1 && p.kernel[0] == 1 && p.out[0] == 1 && p.groups == 1;
  if (!images || p.dilation[1] * p.dilation[2] != 1) return std::nullopt;
  if (p.stride[1] > hip::kIntegerBlock || p.stride[2] > hip::kIntegerBlock || p.C > hip::kIntegerBlock)
    return std::nullopt;
  ConvolutionProblem blocks = p;
  blocks.C = p.C * p.stride[1] * p.stride[2];
  if (blocks.C > hip::kIntegerBlock || blocks.C == p.C) return std::nullopt;
  for (size_t axis = 1; axis < kSpatialAxes; ++axis) {
    blocks.in[axis] = divide_up(p.in[axis], p.stride[axis]);
    blocks.kernel[axis] = divide_up(shift_of(p, axis) + p.kernel[axis], p.stride[axis]);
    blocks.pad[axis] = divide_up(p.pad[axis], p.stride[axis]);
    blocks.stride[axis] = 1;
  }
  return blocks;
}

std::vector<uint8_t> pack_space_to_depth_filters(const ConvolutionProblem& p, const uint8_t* w,
                                                 bool channels_last, bool is_signed) {
  const ConvolutionProblem blocks = space_to_depth(p).value();
  std::vector<uint8_t> packed(static_cast<size_t>(p.M * blocks.taps() * hip::kIntegerBlock));
  for (int64_t m = 0; m < p.M; ++m) {
    for (int64_t c = 0; c < p.C; ++c) {
      for (int64_t r = 0; r < p.kernel[1]; ++r) {
        for (int64_t s = 0; s < p.kernel[2]; ++s) {
          const int64_t h = shift_of(p, 1) + r, v = shift_of(p, 2) + s, tap = r * p.kernel[2] + s;
          const int64_t block = h / p.stride[1] * blocks.kernel[2] + v / p.stride[2];
          const int64_t pixel = h % p.stride[1] * p.stride[2] + v % p.stride[2];
          const int64_t from =
              channels_last ? (m * p.taps() + tap) * p.C + c : (m * p.C + c) * p.taps() + tap;
          const int64_t to = (m * blocks.taps() + block) * hip::kIntegerBlock + pixel * p.C + c;
          packed[static_cast<size_t>(to)] = static_cast<uint8_t>(w[from] ^ (is_signed ? 0 : 0x80));
        }
      }
    }
  }
  return packed;
}

Plan integer_blocks_plan(const ConvolutionProblem& p, bool channels_last) {
  const ConvolutionProblem blocks = space_to_depth(p).value();
  const int64_t total = p.N * blocks.in[1] * blocks.in[2];
  if (total == 0) return {};
  hip::IntegerBlocksArgs args = {};
  args.x = input(0);
  args.columns = input(1);
  args.packed = output(0);
  args.total = to_u31(total);
  args.across = make_divisor(blocks.in[2]);
  args.down = make_divisor(blocks.in[1]);
  args.C = to_i31(p.C);
  args.H = to_i31(p.in[1]);
  args.W = to_i31(p.in[2]);
  args.stride_h = to_i31(p.stride[1]);
  args.stride_w = to_i31(p.stride[2]);
  args.x_channel = channels_last ? 1 : to_i31(p.in[1] * p.in[2]);
  args.x_column = channels_last ? args.C : 1;
  args.x_row = to_i31(p.in[2] * args.x_column);
  args.x_image = to_i31(p.C * p.in[1] * p.in[2]);
  return one_launch("integer_blocks", total, hip::kIntegerThreads, args);
}

const char* refuse_integer_depthwise(const ConvolutionProblem& p) {
  if (p.C != 1 || p.M != 1 || p.groups == 1) return "not one filter for each channel";
  if (p.groups % hip::kIntegerPack != 0) return "the number of channels is not a multiple of 8";
  return p.in[0] != 1 || p.kernel[0] != 1 || p.out[0] != 1 ? "three spatial axes" : nullptr;
}

namespace {

// Returns the kernel for a square window; null if there is none.
const char* square_depthwise(const ConvolutionProblem& p) {
  const int64_t side = p.kernel[1], stride = p.stride[1];
  const bool square = p.kernel[2] == side && p.stride[2] == stride && p.dilation[1] * p.dilation[2] == 1;
  if (!square || (side != 3 && side != 5) || stride > 2) return nullptr;
  if (side == 3) return stride == 1 ? "integer_depthwise_3x3" : "integer_depthwise_3x3_stride_2";
  return stride == 1 ? "integer_depthwise_5x5" : "integer_depthwise_5x5_stride_2";
}

}  // namespace

Plan integer_depthwise_plan(const ConvolutionProblem& p, const IntegerColumnsProblem& columns) {
  const char* square = square_depthwise(p);
  const int64_t strip = square != nullptr ? hip::kIntegerDepthwiseSquareStrip : hip::kIntegerDepthwiseStrip;
  const int64_t packs = p.groups / hip::kIntegerPack, strips = divide_up(p.out[2], strip),
                total = p.N * p.out[1] * strips * packs;
  if (total == 0) return {};
  to_u31(p.in[1] * p.in[2]);
  to_u31(p.out[1] * p.stride[1] + p.span(1));
  to_u31(strips * strip * p.stride[2] + p.span(2));
  hip::IntegerDepthwiseArgs args = {};
  args.x = input(0);
  args.w = input(1);
  args.columns = input(2);
  args.y = output(0);
  args.total = to_u31(total);
  args.channels = to_i31(p.groups);
  args.row = to_i31(round_up(p.groups, 16));
  args.packs = make_divisor(packs);
  args.strips = make_divisor(strips);
  args.rows = make_divisor(p.out[1]);
  args.H = to_i31(p.in[1]);
  args.W = to_i31(p.in[2]);
  args.OW = to_i31(p.out[2]);
  args.window = window_of(p);
  fill_epilogue(args, columns, columns.left == ElementType::kUint8);
  return one_launch(square != nullptr ? square : "integer_depthwise", total, hip::kIntegerDepthwiseThreads,
                    args);
}

Plan scale_sums_plan(const ScaleProblem& p) {
  const int64_t total = p.outer * p.M * p.N;
  if (total == 0) return {};
  hip::ScaleSumsArgs args = {};
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
  args.act = p.act;
  return one_launch("scale_sums", total, hip::kScaleThreads, args);
}

}  // namespace graphopt::gpu
