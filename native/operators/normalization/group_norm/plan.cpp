#include <algorithm>
#include <numeric>

#include "operators/normalization/group_norm/args.h"
#include "operators/normalization/group_norm/channels_last_args.h"
#include "operators/normalization/group_norm/op.h"

namespace graphopt::gpu {

namespace {

constexpr int64_t kChannelsLastThreads = hip::kGroupNormChannelsLastThreads;
constexpr int64_t kMomentsBytes = 8;

// Fills in the arguments of kernels that write Y.
template <class Args>
void fill(Args& args, const GroupNormProblem& p) {
  args.x = input(0);
  args.gamma = input(1);
  args.beta = input(2);
  args.y = output(0);
  args.epsilon = p.epsilon;
  args.act = p.act;
}

// X in channels last, and its division into blocks of channels and slabs of pixels.
struct ChannelsLastSplit {
  int64_t images, pixels, channels, group_channels;
  int64_t size;                  // elements per pack
  int64_t columns = 1;           // packs of a block in each pixel
  int64_t rounds = 1, slab = 0;  // rounds and pixels of a work-group

  ChannelsLastSplit(const GroupNormProblem& p, bool aligned)
      : images(p.N),
        pixels(p.inner),
        channels(p.C),
        group_channels(p.C / p.groups),
        size(aligned && p.C % 8 == 0 ? 8 : 1) {}

  int64_t width() const { return columns * size; }
  int64_t rows() const { return kChannelsLastThreads / columns; }
  int64_t round_pixels() const { return rows() * hip::kGroupNormChannelsLastSteps; }
  int64_t blocks() const { return divide_up(channels, width()); }
  int64_t slabs() const { return divide_up(pixels, slab); }
  int64_t work_groups() const { return images * blocks() * slabs(); }
  // Returns the maximum number of groups to which the channels of a block belong.
  int64_t groups() const {
    if (width() % group_channels == 0) return width() / group_channels;
    return group_channels % width() == 0 ? 1 : (width() - 2) / group_channels + 2;
  }

  void set_slab(int64_t count) {
    slab = count;
    rounds = divide_up(slab, round_pixels());
  }

  // Chooses blocks of complete groups, such that one work-group processes all pixels of a block. Returns false if the
  // smallest such block is too large. Also returns false for blocks with more than kFew packs in all pixels, unless
  // they occupy a quarter of the compute units and use full memory sectors. For smaller blocks, a cache compensates
  // for partial sectors.
  bool choose_complete_groups(const DeviceFacts& device) {
    constexpr int64_t kLeast = kChannelsLastThreads, kFew = 4 * kChannelsLastThreads,
                      kMost = 16 * kChannelsLastThreads;  // packs in all pixels
    constexpr int64_t kNarrow = 32;                       // channels
    const int64_t together =
        size / std::gcd(group_channels, size);  // fewest groups that consist of complete packs
    const int64_t unit = together * group_channels / size;
    const int64_t max_units =
        std::min({hip::kGroupNormChannelsLastWidth / (unit * size),
                  hip::kGroupNormChannelsLastGroups / together, kMost / (unit * pixels)});
    if (max_units == 0) return false;
    int64_t units = std::clamp<int64_t>(std::max(kLeast / pixels, kNarrow / size) / unit, 1, max_units);
    const auto fills = [&] {
      columns = units * unit;
      set_slab(pixels);
      return work_groups() * 4 >= device.compute_units;
    };
    while (!fills() && units > 1) units /= 2;
    return columns * pixels <= kFew || (fills() && width() >= std::min(kNarrow, channels));
  }

  // Chooses blocks of 128 bytes (64 bytes without packs), or less if these have too many groups. The slabs should fill
  // the device. Each work-group also reads the moments of all slabs of its groups. These may have at most a quarter of
  // the bytes that it reads of X, which limits the number of slabs.
  void split_groups(const DeviceFacts& device) {
    const int64_t packs = divide_up(channels, size);
    int64_t max_columns = size == 8 ? 8 : 32;
    do {
      columns = divide_up(packs, divide_up(packs, max_columns));
      max_columns = columns / 2;
    } while (groups() > hip::kGroupNormChannelsLastGroups);
    const int64_t all_rounds = divide_up(pixels, round_pixels());
    const int64_t crossed = (group_channels - 1) / width() + 1;  // blocks of a group
    int64_t each =
        divide_up(images * blocks() * all_rounds, device.compute_units * hip::kGroupNormChannelsLastSharing);
    const auto moments = [&] { return divide_up(all_rounds, each) * crossed * groups() * kMomentsBytes; };
    const int64_t bytes = kChannelsLastThreads * hip::kGroupNormChannelsLastSteps * size * 2;
    while (each < all_rounds && moments() * 4 > each * bytes) ++each;
    // All slabs get about the same number of pixels.
    set_slab(std::min(pixels, round_up(divide_up(pixels, divide_up(all_rounds, each)), rows())));
  }

  hip::GroupNormTiles tiles() const {
    hip::GroupNormTiles t = {};
    t.channels = to_u31(channels);
    t.pixels = to_u31(pixels);
    to_u31(pixels * channels);
    t.slab = to_u31(slab);
    t.rounds = to_u31(rounds);
    t.rows = to_u31(rows());
    t.columns = make_divisor(columns);
    t.blocks = make_divisor(blocks());
    t.slabs = make_divisor(slabs());
    t.group_channels = make_divisor(group_channels);
    return t;
  }
};

Plan channels_last_plan(const GroupNormProblem& p, bool aligned, const DeviceFacts& device) {
  Plan plan;
  ChannelsLastSplit split(p, aligned);
  const bool wide = split.size == 8;
  if (split.choose_complete_groups(device)) {
    hip::GroupNormChannelsLastArgs args = {};
    fill(args, p);
    args.tiles = split.tiles();
    plan.launch(wide ? "group_norm_channels_last_8_f16" : "group_norm_channels_last_1_f16",
                {to_u31(split.work_groups())}, hip::kGroupNormChannelsLastThreads, args);
    return plan;
  }

  split.split_groups(device);
  plan.workspace.push_back(split.work_groups() * split.groups() * kMomentsBytes);
  hip::GroupNormChannelsLastStatsArgs stats = {};
  stats.x = input(0);
  stats.partial = workspace(0);
  stats.tiles = split.tiles();
  stats.groups = to_u31(split.groups());
  plan.launch(wide ? "group_norm_channels_last_stats_8_f16" : "group_norm_channels_last_stats_1_f16",
              {to_u31(split.work_groups())}, hip::kGroupNormChannelsLastThreads, stats);
  hip::GroupNormChannelsLastApplyArgs apply = {};
  fill(apply, p);
  apply.partial = workspace(0);
  apply.tiles = split.tiles();
  apply.groups = to_u31(split.groups());
  plan.launch(wide ? "group_norm_channels_last_apply_8_f16" : "group_norm_channels_last_apply_1_f16",
              {to_u31(split.work_groups())}, hip::kGroupNormChannelsLastThreads, apply);
  return plan;
}

}  // namespace

Plan group_norm_plan(const GroupNormProblem& p, bool half, bool aligned, const DeviceFacts& device) {
  constexpr int64_t kSmall = hip::kGroupNormSmallElements, kLarge = hip::kGroupNormLargeElements,
                    kThreads = hip::kGroupNormMaxThreads;
  Plan plan;
  const int64_t groups = p.N * p.groups, channels = p.C / p.groups, size = channels * p.inner;
  if (groups * size == 0) return plan;
  if (p.channels_last) return channels_last_plan(p, aligned, device);
  const int64_t pack = half ? 8 : 4;
  const bool vectors = aligned && size % pack == 0;
  const auto elements = to_u31(size);

  // One work-group per group reads X once, but leaves most of the device idle if there are few groups.
  const int64_t parts = divide_up(size, hip::kGroupNormPart);
  const bool fills = groups * 4 >= device.compute_units || parts < 4;
  if (vectors && size <= kThreads * kLarge && fills) {
    const bool small = size <= kThreads * kSmall;
    const int64_t threads =
        std::max<int64_t>(device.wave, round_up(divide_up(size, small ? kSmall : kLarge), device.wave));
    const char* name = float_kernel(small ? "group_norm_small" : "group_norm_large", half);
    hip::GroupNormArgs args = {};
    fill(args, p);
    args.size = elements;
    args.group_channels = static_cast<uint32_t>(channels);
    args.groups = make_divisor(p.groups);
    args.inner = make_divisor(p.inner);
    args.threads = static_cast<int32_t>(threads);
    plan.launch(name, {to_u31(groups)}, static_cast<uint32_t>(threads), args);
    return plan;
  }

  const uint32_t grid = to_u31(groups * parts);
  plan.workspace.push_back(groups * parts * 2 * 4);
  hip::GroupNormStatsArgs stats = {};
  stats.x = input(0);
  stats.partial = workspace(0);
  stats.size = elements;
  stats.parts = make_divisor(parts);
  stats.vectors = vectors;
  plan.launch(float_kernel("group_norm_stats", half), {grid}, hip::kGroupNormSplitThreads, stats);
  hip::GroupNormApplyArgs apply = {};
  fill(apply, p);
  apply.partial = workspace(0);
  apply.size = elements;
  apply.group_channels = static_cast<uint32_t>(channels);
  apply.groups = make_divisor(p.groups);
  apply.inner = make_divisor(p.inner);
  apply.parts = make_divisor(parts);
  apply.vectors = vectors;
  plan.launch(float_kernel("group_norm_apply", half), {grid}, hip::kGroupNormSplitThreads, apply);
  return plan;
}

}  // namespace graphopt::gpu
