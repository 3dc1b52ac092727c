#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <utility>

#include "operators/attention/attention/args.h"
#include "operators/attention/attention/op.h"

namespace graphopt::gpu {
namespace {

using hip::AttentionRows;
using hip::AttentionShape;

hip::AttentionStrides strides(const Strides4& s) { return {s.b, s.h, to_i31(s.row), to_i31(s.col)}; }

// On NVIDIA GPUs, narrow heads have separate float16 kernels without bias, mask, window and softcap: heads of at most
// kNarrowHead elements with kMany, and heads of 65 to kNarrowHeadOf128 elements.
constexpr int64_t kNarrowHead = 48, kNarrowHeadOf128 = 96;

// Whether rows of `width` elements can be read in packs of 16 bytes, with 32-bit offsets for `rows` rows.
bool vectors(const Strides4& s, int64_t width, int64_t rows, int64_t pack) {
  return width > 0 && s.col == 1 && width % pack == 0 && (s.row | s.h | s.b | s.offset) % pack == 0 &&
         s.row < (int64_t{1} << 31) / rows;
}

// The selected kernel and the shape of its work-groups.
struct KernelVariant {
  size_t bucket = 0;    // index in kAttentionHeads
  bool matrix = false;  // multiplies on the matrix units
  bool copies = false;  // the device has direct copies from memory to LDS
  bool plain = false;   // no bias, mask, window and softcap, and scale > 0
  AttentionRows rows = AttentionRows::kFew;
  bool few = false;  // fused_attention_few_*
  AttentionShape shape;

  int head() const { return hip::kAttentionHeads[bucket]; }
  int block_rows() const { return few ? hip::kAttentionFewRows : shape.block_rows(); }
};

size_t bucket_of(int64_t widest) {
  for (size_t bucket = 0; bucket < std::size(hip::kAttentionHeads); ++bucket) {
    if (hip::kAttentionHeads[bucket] >= widest) return bucket;
  }
  throw std::invalid_argument("heads of " + std::to_string(widest) + " elements; at most 256 are supported");
}

AttentionShape shape_of(const KernelVariant& c, const Architecture& arch, bool half, AttentionRows rows) {
  return hip::attention_shape(c.matrix, arch.wave, kernel_lds(arch), c.head(), half ? 2 : 4, c.plain, rows);
}

const char* kernel_of(const KernelVariant& c, const AttentionProblem& p, bool half) {
  int64_t head = c.head();
  if (half && c.copies && c.plain) {
    const int64_t widest = std::max(p.D, p.Dv);
    if (c.rows == AttentionRows::kMany && widest <= kNarrowHead) head = kNarrowHead;
    if (head == 128 && widest <= kNarrowHeadOf128) head = kNarrowHeadOf128;
  }
  constexpr const char* kRowsInName[] = {"", "_many", "_ping_pong", "_pairs"};  // AttentionRows
  return kernel_name({"fused_attention", c.plain ? "_plain" : "", kRowsInName[static_cast<size_t>(c.rows)],
                      "_", std::to_string(head), half ? "_f16" : "_f32"});
}

// Whether two groups of waves in a work-group should divide the keys between them (kPingPong). One group multiplies
// while the other computes exponentials, like two work-groups on a compute unit. This is faster if a compute unit has
// only one work-group and each wave group has several blocks of keys.
bool prefers_ping_pong(const AttentionProblem& p, const KernelVariant& c, const AttentionShape& shape,
                       int64_t units) {
  constexpr int64_t kLeastBlocks = 4;
  const int64_t rows = p.group * p.S, groups = p.B * (p.H / p.group) * divide_up(rows, shape.block_rows());
  if (groups > units || 4 * rows <= shape.block_rows() || p.T < kLeastBlocks * shape.keys) return false;
  // Heads of up to 64 elements need kMany and more than half of the compute units. Otherwise kFew, with fewer rows for
  // each work-group, fills more compute units.
  return c.head() > 64 || (c.rows == AttentionRows::kMany && 2 * groups > units);
}

// Whether a causal problem is faster with kPairs. The work-groups of later queries have more keys. With one work-group
// on each compute unit, the longest one would set the time. kPairs is faster if most compute units get two work-groups,
// and if the work-groups differ in their numbers of keys.
bool prefers_pairs(const AttentionProblem& p, const AttentionShape& shape, const DeviceFacts& device) {
  const int64_t groups = p.B * (p.H / p.group) * divide_up(p.group * p.S, shape.block_rows());
  const int64_t keys = p.begins_at_first_key ? p.S : p.T, units = device.compute_units;
  return p.causal && device.xcds == 1 && keys <= 2 * p.S && groups > units && groups <= 2 * units;
}

KernelVariant choose(const AttentionProblem& p, bool half, bool aligned, const DeviceFacts& device,
                     std::optional<AttentionRows> wanted) {
  const Architecture& arch = architecture(device.arch);
  KernelVariant c;
  c.bucket = bucket_of(std::max(p.D, p.Dv));
  c.matrix = half ? arch.matrix != hip::Matrix::kNone : arch.matrix_f32;
  c.copies = arch.matrix == hip::Matrix::kMma;
  const int64_t pack = half ? 8 : 4;
  c.plain = !p.has_bias && !p.has_mask && !p.window && p.softcap == 0.0f && p.scale > 0.0f;
  // On devices with direct copies to LDS, the plain kernels copy blocks in entire vectors only.
  if (c.matrix && c.copies) {
    const int64_t keys = shape_of(c, arch, half, AttentionRows::kFew).keys;
    c.plain = c.plain && aligned && vectors(p.k, p.D, keys, pack) && vectors(p.v, p.Dv, keys, pack);
  }
  // Returns the number of rows that the busiest compute unit multiplies.
  const auto busiest = [&](AttentionRows r) {
    const int64_t block_rows = shape_of(c, arch, half, r).block_rows();
    const int64_t groups = p.B * (p.H / p.group) * divide_up(p.group * p.S, block_rows);
    return divide_up(groups, device.compute_units) * block_rows;
  };
  // Work-groups with kMany rows multiply about an eighth faster (measured on an H200).
  if (hip::attention_has_many(c.matrix, arch.wave, c.copies, c.head(), c.plain, half ? 2 : 4) &&
      (wanted ? *wanted == AttentionRows::kMany
              : busiest(AttentionRows::kMany) * 8 <= busiest(AttentionRows::kFew) * 9)) {
    c.rows = AttentionRows::kMany;
  }
  // With few rows, reading K and V takes most of the time.
  const bool one_window = p.has_seqlens_k && p.S == 1;  // one query: all rows see the same keys
  c.few = !wanted && !p.has_bias && !p.has_mask && p.scale > 0.0f && !p.causal && !p.guard &&
          (!p.window || one_window) && p.T > 0 && p.group * p.S <= hip::kAttentionFewRows &&
          (half || c.head() <= 128) && aligned && vectors(p.k, p.D, 1, pack) && vectors(p.v, p.Dv, 1, pack);
  if (hip::attention_has_pairs(c.matrix, c.copies, c.head(), c.plain, half ? 2 : 4)) {
    const AttentionShape shape = shape_of(c, arch, half, AttentionRows::kPairs);
    if (wanted ? *wanted == AttentionRows::kPairs : !c.few && prefers_pairs(p, shape, device)) {
      c.rows = AttentionRows::kPairs;
    }
  }
  if (hip::attention_has_ping_pong(c.matrix, c.copies, c.head(), c.plain, half ? 2 : 4)) {
    const AttentionShape shape = shape_of(c, arch, half, AttentionRows::kPingPong);
    if (wanted ? *wanted == AttentionRows::kPingPong
               : !c.few && c.rows != AttentionRows::kPairs &&
                     prefers_ping_pong(p, c, shape, device.compute_units)) {
      c.rows = AttentionRows::kPingPong;
    }
  }
  c.shape = shape_of(c, arch, half, c.rows);
  return c;
}

// Whether groups of kAttentionKeysTogether adjacent keys are aligned in every row of a mask.
bool has_groups(const Strides4& s, int64_t keys) {
  return s.col == 1 && (s.b | s.h | s.row | keys) % hip::kAttentionKeysTogether == 0;
}

hip::AttentionScores scores_of(const AttentionProblem& p, const KernelVariant& choice, bool half,
                               bool aligned, bool is_split) {
  constexpr float kLog2E = 1.44269504f;
  const bool skips =
      p.window || (p.causal && (!p.has_mask || p.mask_value == -std::numeric_limits<float>::infinity()));
  const int64_t pack = half ? 8 : 4, keys = choice.shape.keys;
  const std::pair<bool, int32_t> flags[] = {
      {p.causal, hip::kAttentionCausal},
      {p.guard, hip::kAttentionGuard},
      {skips, hip::kAttentionSkips},
      {p.has_bias, hip::kAttentionBias},
      {p.has_mask, hip::kAttentionMask},
      {p.softcap != 0.0f, hip::kAttentionSoftcap},
      {aligned && vectors(p.q, p.D, 1, pack), hip::kAttentionVectorQ},
      {aligned && vectors(p.k, p.D, keys, pack), hip::kAttentionVectorK},
      {aligned && vectors(p.v, p.Dv, keys, pack), hip::kAttentionVectorV},
      {aligned && vectors(p.o, p.Dv, 1, pack), hip::kAttentionVectorO},
      {p.k.row < p.k.col, hip::kAttentionKeyMajorK},
      {!p.has_seqlens_k && ((p.guard && (is_split || choice.plain)) || p.window || (skips && p.S > 1)),
       hip::kAttentionNonfinite},
      {p.window, hip::kAttentionWindow},
      {p.has_seqlens_k, hip::kAttentionSeqlensK},
      {p.begins_at_first_key, hip::kAttentionBeginsAtFirstKey},
      {p.ends_at_last_key, hip::kAttentionEndsAtLastKey},
      {p.sink, hip::kAttentionSink},
      {is_split, hip::kAttentionSplit},
      {aligned && p.has_mask && has_groups(p.mask, p.T), hip::kAttentionVectorMask},
      {choice.rows == AttentionRows::kPairs, hip::kAttentionPairs},
  };
  const bool scaled_in_exponent = choice.plain || (choice.few && p.softcap == 0.0f);
  hip::AttentionScores scores{
      p.scale, p.softcap, 1.0f / p.softcap, p.mask_value, scaled_in_exponent ? p.scale * kLog2E : kLog2E, 0};
  for (const auto& [is_set, flag] : flags) {
    if (is_set) scores.flags |= flag;
  }
  return scores;
}

// The number of splits of the keys, and the keys of a split. With has_seqlens_k, a split has a multiple of `keys` keys,
// which the device computes from the number of keys of the batch element. Splits may then be empty.
struct Splits {
  int64_t count, keys;
};

// Returns the largest number of keys that the queries of a batch element see. Without has_seqlens_k, ignores a window.
int64_t most_keys(const AttentionProblem& p) {
  return p.has_seqlens_k && p.window ? std::min(p.T, std::max<int64_t>(p.left, 0) + p.S) : p.T;
}

// Returns the splits for fused_attention_few_*. With few rows, reading K and V takes most of the time. Full bandwidth
// needs several work-groups on each compute unit, each with a few hundred keys. With direct copies to LDS, one
// work-group on each compute unit reaches full bandwidth, and more splits make the merge longer.
//
// A decoder's first tokens have few keys. If one compute unit processed all of them, the arithmetic of several rows
// would take longer than reading K and V. With has_seqlens_k, a split may therefore be as short as the keys that a
// work-group reads at once.
Splits split_few(const AttentionProblem& p, const KernelVariant& choice, bool half, int64_t groups,
                 int64_t units) {
  constexpr int64_t kLeastKeys = 256;
  const int64_t wanted = choice.copies ? 1 : 4;
  if (p.has_seqlens_k) {
    const int64_t lanes = choice.head() / (half ? 8 : 4);
    const int64_t at_once = hip::kAttentionThreads / lanes * hip::kAttentionFewKeys;
    return {std::max<int64_t>(std::min(wanted * units / groups, divide_up(most_keys(p), at_once)), 1),
            at_once};
  }
  const int64_t splits = std::max<int64_t>(std::min(wanted * units / groups, p.T / kLeastKeys), 1);
  const int64_t keys = divide_up(p.T, splits);
  return {divide_up(p.T, keys), keys};
}

// Splits the keys if there are at most half as many work-groups as compute units. With few rows in a block, reading K
// and V takes most of the time. Full bandwidth then needs several work-groups on each compute unit: the keys are split
// if there are at most two for each compute unit. With kPingPong, one work-group fills a compute unit.
// Each wave group of a split has at least kLeastBlocks blocks of keys, because each split also adds work to the merge.
Splits split(const AttentionProblem& p, const AttentionShape& shape, int64_t groups, int64_t units) {
  constexpr int64_t kLeastBlocks = 4;
  const bool few_rows = p.group * p.S * 4 <= shape.block_rows();
  const int64_t blocks = divide_up(most_keys(p), shape.keys);
  int64_t splits = 1;
  if (groups * 2 <= (few_rows ? 4 : 1) * units) {
    const int64_t wanted =
        shape.wave_groups > 1 ? units / groups : divide_up((few_rows ? 4 : 2) * units, groups);
    splits = std::min(wanted, std::max<int64_t>(blocks / (kLeastBlocks * shape.wave_groups), 1));
  }
  if (p.has_seqlens_k) return {splits, int64_t{shape.keys} * shape.wave_groups};
  const int64_t keys = std::max<int64_t>(divide_up(blocks, splits), 1) * shape.keys;
  return {std::max<int64_t>(divide_up(p.T, keys), 1), keys};
}

// Returns the number of ranges of the grid that start at the same time: one for each die. A causal problem on one die,
// without splits, has one range for each query head. The longest blocks of all heads then start first: a long block
// that started last would keep its compute unit busy after all others have finished. K and V of the heads that are
// processed at the same time should fit in half of the L2 cache. Large heads therefore have fewer ranges. The query
// heads of a group share one range if the number of row blocks is not a multiple of the group.
int64_t count_ranges(const AttentionProblem& p, int64_t row_blocks, int64_t splits, bool half,
                     const DeviceFacts& device) {
  if (device.xcds > 1 || !p.causal || splits > 1) return device.xcds;
  const int64_t heads = p.B * (p.H / p.group), of_head = row_blocks % p.group == 0 ? p.group : 1;
  const int64_t bytes = p.T * (p.D + p.Dv) * (half ? 2 : 4);
  int64_t at_once = heads;
  while (at_once % 2 == 0 && at_once * bytes > device.l2_bytes / 2) at_once /= 2;
  return at_once * of_head;
}

hip::AttentionLayout layout_of(const AttentionProblem& p, const hip::AttentionSizes& sizes,
                               const hip::AttentionScores& scores, int64_t row_blocks, int64_t splits,
                               uint32_t grid, int64_t ranges) {
  hip::AttentionLayout layout = {};
  layout.q = strides(p.q);
  layout.k = strides(p.k);
  layout.v = strides(p.v);
  layout.o = strides(p.o);
  layout.bias = strides(p.bias);
  layout.mask = strides(p.mask);
  layout.sizes = sizes;
  layout.queries = make_divisor(p.S);
  layout.row_blocks = make_divisor(row_blocks);
  layout.heads = make_divisor(p.H / p.group);
  layout.splits = make_divisor(splits);
  layout.ranges = make_divisor(ranges);
  layout.groups_of_range = grid / static_cast<uint32_t>(ranges);
  layout.scores = scores;
  return layout;
}

// Buffers between the kernels; no_buffer() if unused.
struct Scratch {
  Buffer partial = no_buffer(), statistics = no_buffer(), nonfinite = no_buffer();
};

// Inputs 5 and 6.
Buffer last_keys_of(const AttentionProblem& p) { return p.has_seqlens_k ? input(5) : no_buffer(); }
Buffer sinks_of(const AttentionProblem& p) { return p.has_sinks ? input(6) : no_buffer(); }

// Launches the search for non-finite values.
void launch_nonfinite(Plan& plan, const AttentionProblem& p, const hip::AttentionLayout& layout, bool half,
                      Buffer nonfinite) {
  const int64_t parts = divide_up(p.T, hip::kAttentionNonfiniteKeys), heads = p.H / p.group;
  if (parts == 0) return;
  const int32_t pack = half ? 8 : 4;
  int32_t across = 1;
  while (across * pack < p.Dv) across *= 2;
  hip::AttentionNonfiniteArgs args = {};
  args.v = offset_by(input(2), p.v.offset * (half ? 2 : 4));
  args.nonfinite = nonfinite;
  args.strides = layout.v;
  args.keys = layout.sizes.T;
  args.Dv = layout.sizes.Dv;
  args.across = across;
  args.vectors = (layout.scores.flags & hip::kAttentionVectorV) != 0;
  args.parts = make_divisor(parts);
  args.heads = make_divisor(heads);
  plan.launch(float_kernel("fused_attention_nonfinite", half), {to_u31(p.B * heads * parts)},
              hip::kAttentionThreads, args);
}

// Launches the merge of the splits.
void launch_combine(Plan& plan, const AttentionProblem& p, const hip::AttentionLayout& layout,
                    const Scratch& scratch, const KernelVariant& choice, bool half, int64_t splits) {
  const int64_t heads = p.H / p.group, rows = p.group * p.S;
  hip::AttentionCombineArgs args = {};
  args.partial = scratch.partial;
  args.statistics = scratch.statistics;
  args.nonfinite = scratch.nonfinite;
  args.last_keys = last_keys_of(p);
  args.sinks = sinks_of(p);
  args.o = output(0);
  args.strides = layout.o;
  args.sizes = layout.sizes;
  args.rows = make_divisor(rows);
  args.queries = make_divisor(p.S);
  args.heads = make_divisor(heads);
  args.splits = make_divisor(splits);
  args.block_rows = choice.block_rows();
  args.head_size = choice.head();
  args.exponent = layout.scores.exponent;
  args.raised = half && !choice.few ? hip::kAttentionRaised : 0.0f;
  args.flags = layout.scores.flags;
  plan.launch(float_kernel("fused_attention_combine", half), {to_u31(p.B * heads * rows)},
              hip::kAttentionThreads, args);
}

}  // namespace

Plan fused_attention_plan(const AttentionProblem& p, bool half, bool aligned, const DeviceFacts& device,
                          std::optional<AttentionRows> wanted) {
  Plan plan;
  if (p.B * p.H * p.S * p.Dv == 0) return plan;
  const KernelVariant choice = choose(p, half, aligned, device, wanted);
  const AttentionShape& shape = choice.shape;
  const int64_t heads = p.H / p.group, rows = p.group * p.S;
  const int64_t row_blocks = divide_up(rows, choice.block_rows()), groups = p.B * heads * row_blocks;
  const Splits splits = choice.few ? split_few(p, choice, half, groups, device.compute_units)
                                   : split(p, shape, groups, device.compute_units);
  const hip::AttentionScores scores = scores_of(p, choice, half, aligned, splits.count > 1);
  // The window is clamped to the sequence lengths: larger bounds do not change which keys it hides. to_i31 throws
  // unless S + T < 2^31, so window + query index does not overflow.
  if (p.window) to_i31(p.S + p.T);
  const hip::AttentionSizes sizes{to_u31(rows),
                                  to_i31(p.S),
                                  to_i31(p.T),
                                  to_i31(p.D),
                                  to_i31(p.Dv),
                                  to_i31(splits.keys),
                                  static_cast<int32_t>(std::clamp(p.left, -p.S, p.T)),
                                  static_cast<int32_t>(std::clamp(p.right, -p.T, p.S))};
  const uint32_t grid = to_u31(groups * splits.count);

  const int64_t ranges = count_ranges(p, row_blocks, splits.count, half, device);
  const hip::AttentionLayout layout = layout_of(p, sizes, scores, row_blocks, splits.count, grid, ranges);

  Scratch scratch;
  const auto take = [&](int64_t bytes) {
    plan.workspace.push_back(bytes);
    return workspace(static_cast<uint8_t>(plan.workspace.size() - 1));
  };
  if ((scores.flags & hip::kAttentionNonfinite) != 0) {
    const int64_t parts = divide_up(p.T, hip::kAttentionNonfiniteKeys);
    scratch.nonfinite = take(std::max<int64_t>(p.B * heads * parts * p.Dv, 1) * 4);
    launch_nonfinite(plan, p, layout, half, scratch.nonfinite);
  }
  if (splits.count > 1) {
    scratch.partial = take(groups * splits.count * choice.block_rows() * choice.head() * 4);
    scratch.statistics = take(groups * splits.count * choice.block_rows() * 2 * 4);
  }
  hip::AttentionArgs args = {};
  const int64_t bytes = half ? 2 : 4;
  args.q = offset_by(input(0), p.q.offset * bytes);
  args.k = offset_by(input(1), p.k.offset * bytes);
  args.v = offset_by(input(2), p.v.offset * bytes);
  args.bias = p.has_bias ? input(3) : no_buffer();
  args.mask = p.has_mask ? input(p.has_bias ? 4 : 3) : last_keys_of(p);
  args.o = output(0);
  args.partial = scratch.partial;
  args.statistics = scratch.statistics;
  args.nonfinite = p.has_seqlens_k ? sinks_of(p) : scratch.nonfinite;
  args.layout = layout;
  if (choice.few) {
    const char* kind = rows == 1 ? "fused_attention_few_one_" : "fused_attention_few_";
    Launch& launch = plan.launch(float_kernel(kind + std::to_string(choice.head()), half), {grid},
                                 hip::kAttentionThreads, args);
    if (choice.copies) launch.lds = hip::kAttentionFewLds;
    if (splits.count > 1) launch_combine(plan, p, layout, scratch, choice, half, splits.count);
    return plan;
  }
  Launch& launch =
      plan.launch(kernel_of(choice, p, half), {grid},
                  static_cast<uint32_t>(shape.all_waves() * architecture(device.arch).wave), args);
  // On NVIDIA GPUs the launch requests the memory of LARGE_SHARED (device/platform.h).
  if (choice.copies) {
    launch.lds = static_cast<uint32_t>(
        shape.lds_bytes(choice.matrix, true, choice.matrix && choice.plain, half ? 2 : 4));
  }
  if (splits.count > 1) launch_combine(plan, p, layout, scratch, choice, half, splits.count);
  return plan;
}

}  // namespace graphopt::gpu
