#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "operators/attention/args.h"
#include "operators/attention/op.h"

namespace graphopt::gpu {
namespace {

using hip::AttentionRows;
using hip::AttentionShape;

hip::AttentionStrides strides(const Strides4& s) { return {s.b, s.h, to_i31(s.row), to_i31(s.col)}; }

// [plain][half][head]
constexpr const char* kKernels[2][2][3] = {
    {{"fused_attention_64_f32", "fused_attention_128_f32", "fused_attention_256_f32"},
     {"fused_attention_64_f16", "fused_attention_128_f16", "fused_attention_256_f16"}},
    {{"fused_attention_plain_64_f32", "fused_attention_plain_128_f32", "fused_attention_plain_256_f32"},
     {"fused_attention_plain_64_f16", "fused_attention_plain_128_f16", "fused_attention_plain_256_f16"}}};
// [plain][head], float32 with many rows
constexpr const char* kManyRows[2][2] = {
    {"fused_attention_many_64_f32", "fused_attention_many_128_f32"},
    {"fused_attention_plain_many_64_f32", "fused_attention_plain_many_128_f32"}};

// Whether rows of `width` elements can be read in packs of 16 bytes, `rows` of them with 32-bit offsets.
bool vectors(const Strides4& s, int64_t width, int64_t rows, int64_t pack) {
  return s.col == 1 && width % pack == 0 && s.row % pack == 0 && s.h % pack == 0 && s.b % pack == 0 &&
         s.row < (int64_t{1} << 31) / rows;
}

}  // namespace

Plan fused_attention_plan(const AttentionProblem& p, bool half, bool aligned, const DeviceFacts& device,
                          std::optional<AttentionRows> wanted) {
  Plan plan;
  if (p.B * p.H * p.S * p.Dv == 0) return plan;
  const int64_t widest = std::max(p.D, p.Dv);
  size_t bucket = 0;
  while (bucket < std::size(hip::kAttentionHeads) && hip::kAttentionHeads[bucket] < widest) ++bucket;
  if (bucket == std::size(hip::kAttentionHeads)) {
    throw std::invalid_argument("heads of " + std::to_string(widest) + " elements, of at most 256");
  }

  const int head = hip::kAttentionHeads[bucket];
  const Architecture& arch = architecture(device.arch);
  const bool matrix = half ? arch.matrix != hip::Matrix::kNone : arch.matrix_f32;
  const int element = half ? 2 : 4;
  const bool plain = !p.has_bias && !p.has_mask && p.softcap == 0.0f && p.scale > 0.0f;
  const int64_t pack = 16 / element, heads = p.H / p.group, rows = p.group * p.S;
  const int64_t units = device.compute_units;
  const auto shape_of = [&](AttentionRows r) {
    return hip::attention_shape(matrix, arch.wave, kernel_lds(arch), head, element, plain, r);
  };
  // Rows that the busiest compute unit multiplies.
  const auto busiest = [&](AttentionRows r) {
    const int64_t block_rows = shape_of(r).block_rows();
    return divide_up(p.B * heads * divide_up(rows, block_rows), units) * block_rows;
  };
  // Many rows in a work-group are multiplied about an eighth faster (measured on an H200).
  const bool has_many = hip::attention_has_many(matrix, head);
  const bool many =
      has_many && (wanted ? *wanted == AttentionRows::kMany
                          : busiest(AttentionRows::kMany) * 8 <= busiest(AttentionRows::kFew) * 9);
  const AttentionShape shape = shape_of(many ? AttentionRows::kMany : AttentionRows::kFew);
  const int64_t row_blocks = divide_up(rows, shape.block_rows());

  const bool skips = p.causal && (!p.has_mask || p.mask_value == -std::numeric_limits<float>::infinity());
  constexpr float kLog2E = 1.44269504f;
  hip::AttentionScores scores{
      p.scale, p.softcap, 1.0f / p.softcap, p.mask_value, plain ? p.scale * kLog2E : kLog2E, 0};
  if (p.causal) scores.flags |= hip::kAttentionCausal;
  if (p.guard) scores.flags |= hip::kAttentionGuard;
  if (skips) scores.flags |= hip::kAttentionSkips;
  if (p.has_bias) scores.flags |= hip::kAttentionBias;
  if (p.has_mask) scores.flags |= hip::kAttentionMask;
  if (p.softcap != 0.0f) scores.flags |= hip::kAttentionSoftcap;
  if (aligned && vectors(p.q, p.D, 1, pack)) scores.flags |= hip::kAttentionVectorQ;
  if (aligned && vectors(p.k, p.D, shape.keys, pack)) scores.flags |= hip::kAttentionVectorK;
  if (aligned && vectors(p.v, p.Dv, shape.keys, pack)) scores.flags |= hip::kAttentionVectorV;
  if (aligned && vectors(p.o, p.Dv, 1, pack)) scores.flags |= hip::kAttentionVectorO;
  if (p.k.row < p.k.col) scores.flags |= hip::kAttentionKeyMajorK;

  // Where the blocks of rows leave the device idle, the keys are split. With few rows in a block the time is
  // that of reading K and V, which takes several work-groups on each compute unit. A split has some blocks of
  // keys, so that it is worth its share of the merge.
  constexpr int64_t kLeastBlocks = 4;
  const int64_t groups = p.B * heads * row_blocks;
  const bool few_rows = rows * 4 <= shape.block_rows();
  const int64_t blocks = divide_up(p.T, shape.keys);
  const int64_t most = std::max<int64_t>(blocks / kLeastBlocks, 1);
  int64_t splits = 1;
  if (groups * 2 <= (few_rows ? 4 : 1) * units) {
    splits = std::min(divide_up((few_rows ? 4 : 2) * units, groups), most);
  }
  const int64_t split_keys = std::max<int64_t>(divide_up(blocks, splits), 1) * shape.keys;
  splits = std::max<int64_t>(divide_up(p.T, split_keys), 1);

  const hip::AttentionSizes sizes{to_u31(rows), to_i31(p.S),  to_i31(p.T),
                                  to_i31(p.D),  to_i31(p.Dv), to_i31(split_keys)};
  Buffer partial = no_buffer(), statistics = no_buffer(), found = no_buffer();
  const auto take = [&](int64_t bytes) {
    plan.workspace.push_back(bytes);
    return workspace(static_cast<uint8_t>(plan.workspace.size() - 1));
  };
  if (p.guard || (skips && p.S > 1)) {
    const int64_t parts = divide_up(p.T, hip::kAttentionValueKeys);
    scores.flags |= hip::kAttentionFound;
    found = take(std::max<int64_t>(p.B * heads * parts * p.Dv, 1) * 4);
    int32_t across = 1;
    while (across * pack < p.Dv) across *= 2;
    if (parts > 0) {
      hip::AttentionValuesArgs args = {};
      args.v = input(2);
      args.found = found;
      args.strides = strides(p.v);
      args.keys = sizes.T;
      args.Dv = sizes.Dv;
      args.across = across;
      args.vectors = (scores.flags & hip::kAttentionVectorV) != 0;
      args.parts = make_divisor(parts);
      args.heads = make_divisor(heads);
      plan.launch(half ? "fused_attention_values_f16" : "fused_attention_values_f32",
                  {to_u31(p.B * heads * parts)}, hip::kAttentionThreads, args);
    }
  }
  if (splits > 1) {
    scores.flags |= hip::kAttentionSplit;
    partial = take(groups * splits * shape.block_rows() * head * 4);
    statistics = take(groups * splits * shape.block_rows() * 2 * 4);
  }

  const uint32_t grid = to_u31(groups * splits);
  hip::AttentionArgs args = {};
  args.q = input(0);
  args.k = input(1);
  args.v = input(2);
  args.bias = p.has_bias ? input(3) : no_buffer();
  args.mask = p.has_mask ? input(p.has_bias ? 4 : 3) : no_buffer();
  args.o = output(0);
  args.partial = partial;
  args.statistics = statistics;
  args.found = found;
  args.layout.q = strides(p.q);
  args.layout.k = strides(p.k);
  args.layout.v = strides(p.v);
  args.layout.o = strides(p.o);
  args.layout.bias = strides(p.bias);
  args.layout.mask = strides(p.mask);
  args.layout.sizes = sizes;
  args.layout.queries = make_divisor(p.S);
  args.layout.row_blocks = make_divisor(row_blocks);
  args.layout.heads = make_divisor(heads);
  args.layout.splits = make_divisor(splits);
  args.layout.dies = make_divisor(device.xcds);
  args.layout.groups_of_die = grid / static_cast<uint32_t>(device.xcds);
  args.layout.scores = scores;
  Launch& launch = plan.launch(many ? kManyRows[plain][bucket] : kKernels[plain][half][bucket], {grid},
                               static_cast<uint32_t>(shape.waves * arch.wave), args);
  // device/platform.h, LARGE_SHARED
  if (arch.matrix == hip::Matrix::kMma)
    launch.lds = static_cast<uint32_t>(shape.lds_bytes(matrix, true, element));

  if (splits > 1) {
    hip::AttentionCombineArgs combine = {};
    combine.partial = partial;
    combine.statistics = statistics;
    combine.found = found;
    combine.o = output(0);
    combine.strides = strides(p.o);
    combine.sizes = sizes;
    combine.columns = make_divisor(p.Dv);
    combine.rows = make_divisor(rows);
    combine.queries = make_divisor(p.S);
    combine.heads = make_divisor(heads);
    combine.splits = static_cast<int32_t>(splits);
    combine.block_rows = static_cast<int32_t>(shape.block_rows());
    combine.head_size = head;
    combine.total = to_u31(p.B * heads * rows * p.Dv);
    combine.exponent = scores.exponent;
    combine.flags = scores.flags;
    plan.launch(half ? "fused_attention_combine_f16" : "fused_attention_combine_f32",
                {to_u31(divide_up(combine.total, hip::kAttentionThreads))}, hip::kAttentionThreads, combine);
  }
  return plan;
}

}  // namespace graphopt::gpu
