// FusedGroupNorm[act] in channels last, float16: y = act(gamma[c] (x - mean) / sqrt(var + epsilon) +
// beta[c]), with float32 statistics of each image and group.
//
// Bound by memory. An image is divided into slabs of pixels and blocks of channels. A work-group processes one block of
// one slab. Its work-items form rows and columns. A column has a pack of 8 channels, or one channel if the number of
// channels is not a multiple of 8. The rows process the pixels of the slab in turn. A work-item loads its pixels in
// rounds of kSteps. For each channel it keeps the moments: a mean and a sum of squared deviations. Two passes over
// registers compute the moments of a round. The moments of rounds, rows, channels and slabs are combined in a fixed
// order (T. F. Chan, G. H. Golub and R. J. LeVeque, 1983).
//
// If a block of complete groups is small, its slab is the entire image (group_norm_channels_last_*). The work-group
// reads pixels that it does not keep in registers a second time, from a cache. Otherwise
// group_norm_channels_last_stats_* reads X once and writes the moments of each group in each slab and block.
// group_norm_channels_last_apply_* combines them and reads X a second time, mostly from the cache. About 15 FLOPs per
// element. Launch: operators/normalization/group_norm/plan.cpp.
#include "blocks/gpu/activation.h"
#include "blocks/gpu/channels_last.h"
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/normalization/group_norm/channels_last_args.h"

namespace graphopt::hip {

constexpr int kSteps = kGroupNormChannelsLastSteps;

// The mean of some values, and the sum of squared deviations from the mean.
struct alignas(8) Moments {
  float mean, deviations;
};

// The statistics of the groups of a block.
struct GroupScales {
  float mean[kGroupNormChannelsLastGroups], scale[kGroupNormChannelsLastGroups];
};

template <int kSize>
struct GroupNormChannelsLastLds {
  // Moments for the channels of each work-item. The 8 additional elements place the moments of a column in different
  // banks.
  Moments own[kSize][kGroupNormChannelsLastThreads + 8];
  float pixels[kGroupNormChannelsLastThreads];  // number of pixels of each row of work-items
  // For each work-item, over its channel and slice of the rows (combine_rows): moments, number of values, index of the
  // group in the block.
  Moments slice[kGroupNormChannelsLastThreads];
  float count[kGroupNormChannelsLastThreads];
  int group[kGroupNormChannelsLastThreads];
  GroupScales scales;
};

struct ChannelRange {
  uint32_t low, high;
};

// The pixels and channels of a work-item.
template <int kSize>
struct TilePosition {
  const GroupNormTiles& tiles;
  uint32_t image, block, slab;
  uint32_t row, column;
  uint32_t first, channels;      // channels of the block
  uint32_t first_group, groups;  // groups of these channels
  uint32_t pixels;               // pixels in the slab
  uint32_t own_pixels;           // pixels of the work-item
  size_t offset;                 // offset of its first element

  DEVICE explicit TilePosition(const GroupNormTiles& of) : tiles(of) {
    const auto id = static_cast<uint32_t>(block_x()), t = static_cast<uint32_t>(thread_x());
    const uint32_t slabs = divide(id, of.blocks);
    block = id - slabs * of.blocks.d;
    image = divide(slabs, of.slabs);
    slab = slabs - image * of.slabs.d;
    row = divide(t, of.columns);
    column = t - row * of.columns.d;
    first = block * of.columns.d * kSize;
    channels = smaller(of.channels - first, of.columns.d * kSize);
    first_group = divide(first, of.group_channels);
    groups = divide(first + channels - 1, of.group_channels) - first_group + 1;
    pixels = pixels_of(slab);
    own_pixels = row < of.rows && column * kSize < channels && row < pixels ? pixels - row : 0;
    offset = static_cast<size_t>(image) * of.pixels * of.channels + (of.slab * slab + row) * of.channels +
             first + column * kSize;
  }

  DEVICE static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
  DEVICE uint32_t pixels_of(uint32_t one) const {
    return smaller(tiles.pixels - one * tiles.slab, tiles.slab);
  }
  // Distance of a step's pixel from the work-item's first pixel.
  DEVICE uint32_t step(uint32_t round, int i) const {
    return (round * kSteps + static_cast<uint32_t>(i)) * tiles.rows;
  }
  // The channels of a group that belong to a block.
  DEVICE ChannelRange channels_of(uint32_t one_block, uint32_t group) const {
    const uint32_t width = tiles.columns.d * kSize, begin = group * tiles.group_channels.d,
                   end = begin + tiles.group_channels.d, low = one_block * width, high = low + width;
    return {begin > low ? begin : low, smaller(end, high)};
  }
  // Offset of the moments of the image.
  DEVICE size_t first_of_image(uint32_t max_groups) const {
    return static_cast<size_t>(image) * (tiles.blocks.d * max_groups * tiles.slabs.d);
  }
  // Channel j of the work-item's pack.
  DEVICE uint32_t channel(int j) const { return first + column * kSize + static_cast<uint32_t>(j); }
};

// A work-item's pixels of a round. Packs of 8 channels are stored as bits: 16-bit elements would take a register each.
template <int kSize>
struct RoundPixels {
  using Bits = typename Select<kSize == 8, Bits128, OneChannel>::Type;
  Bits step[kSteps];

  DEVICE Channels<kSize> at(int i) const { return bit_cast<Channels<kSize>>(step[i]); }

  // Loads the pixels and returns their number.
  DEVICE int load(const TilePosition<kSize>& position, const half_t* x, uint32_t round) {
    int found = 0;
    UNROLL for (int i = 0; i < kSteps; ++i) {
      const uint32_t at = position.step(round, i);
      if (at < position.own_pixels) {
        const Channels<kSize> loaded =
            load_channels<kSize>(x + position.offset + at * position.tiles.channels);
        step[i] = bit_cast<Bits>(loaded);
        ++found;
      }
    }
    return found;
  }
};

// Computes the moments of the work-item's channels and writes them to LDS. Afterwards `round` holds the
// pixels that were loaded last.
template <int kSize>
DEVICE void compute_channel_moments(const TilePosition<kSize>& position, const half_t* x,
                                    RoundPixels<kSize>& round, GroupNormChannelsLastLds<kSize>& lds) {
  Moments own[kSize] = {};
  float count = 0;
  for (uint32_t r = 0; r < position.tiles.rounds; ++r) {
    const int found = round.load(position, x, r);
    if (found == 0) break;
    const float more = static_cast<float>(found), inverse = 1.0f / more, share = more / (count + more);
    UNROLL for (int j = 0; j < kSize; ++j) {
      // The pivot is a value or the previous mean of the channel. Without it, a large mean would cost digits
      // of the sum. Equal values have deviations of exactly 0.
      const float pivot = count > 0.0f ? own[j].mean : to_float(round.at(0).v[j]);
      float sum = 0, deviations = 0;
      UNROLL for (int i = 0; i < kSteps; ++i) {
        if (i < found) sum += to_float(round.at(i).v[j]) - pivot;
      }
      const float away = sum * inverse, mean = pivot + away;
      UNROLL for (int i = 0; i < kSteps; ++i) {
        const float d = to_float(round.at(i).v[j]) - mean;
        if (i < found) deviations += d * d;
      }
      own[j].deviations += deviations + away * away * (count * share);
      own[j].mean = pivot + away * share;
    }
    count += more;
  }
  UNROLL for (int j = 0; j < kSize; ++j) lds.own[j][thread_x()] = own[j];
  if (position.column == 0) lds.pixels[position.row] = count;
}

// Combines moments over a wave. each(add) calls add(moments, number of values) for each of the work-item's moments.
// `count` is the number of values of all work-items. The pivot must be near their mean.
template <class Each>
DEVICE Moments combine_in_wave(float pivot, float count, const Each& each) {
  float sum = 0, deviations = 0;
  each([&](const Moments& some, float n) { sum += n * (some.mean - pivot); });
  const float mean = pivot + wave_sum(sum) / count;
  each([&](const Moments& some, float n) {
    const float d = some.mean - mean;
    deviations += some.deviations + n * d * d;
  });
  return {mean, wave_sum(deviations)};
}

// Combines the rows of each column. A slice is every `slices`-th row; each work-item of the column combines one slice
// for one of the pack's channels.
template <int kSize>
DEVICE void combine_rows(const TilePosition<kSize>& position, GroupNormChannelsLastLds<kSize>& lds) {
  const uint32_t slices = position.tiles.rows / kSize, slice = position.row / kSize,
                 columns = position.tiles.columns.d;
  const auto j = static_cast<int>(position.row % kSize);
  const int t = thread_x();
  Moments all = {};
  float count = 0;
  int group = -1;
  if (slice < slices && position.column * kSize < position.channels) {
    const auto each = [&](const auto& f) {
      for (uint32_t r = slice; r < position.tiles.rows; r += slices) {
        f(lds.own[j][r * columns + position.column], lds.pixels[r]);
      }
    };
    const float pivot = lds.own[j][slice * columns + position.column].mean;
    float sum = 0;
    each([&](const Moments& one, float n) {
      count += n;
      sum += n * (one.mean - pivot);
    });
    all.mean = count > 0.0f ? pivot + sum / count : 0.0f;
    each([&](const Moments& one, float n) {
      const float d = one.mean - all.mean;
      all.deviations += one.deviations + n * d * d;
    });
    group =
        static_cast<int>(divide(position.channel(j), position.tiles.group_channels) - position.first_group);
  }
  lds.slice[t] = all;
  lds.count[t] = count;
  lds.group[t] = group;
}

// Computes the moments of each group of the block over the slab, each group in one wave. Calls f(index of the group in
// the block, number of values, moments).
template <int kSize, class F>
DEVICE void combine_groups(const TilePosition<kSize>& position, const GroupNormChannelsLastLds<kSize>& lds,
                           const F& f) {
  const uint32_t columns = position.tiles.columns.d;
  for (int g = wave_id(); g < static_cast<int>(position.groups); g += kGroupNormChannelsLastThreads / kWave) {
    const auto [low, high] =
        position.channels_of(position.block, position.first_group + static_cast<uint32_t>(g));
    const uint32_t from = low - position.first;
    const float pivot = lds.slice[from % kSize * columns + from / kSize].mean;  // mean of slice 0
    const float count = static_cast<float>(position.pixels) * static_cast<float>(high - low);
    f(g, count, combine_in_wave(pivot, count, [&](const auto& add) {
        UNROLL for (int k = 0; k < kGroupNormChannelsLastThreads; k += kWave) {
          const int t = k + lane_id();
          if (lds.group[t] == g) add(lds.slice[t], lds.count[t]);
        }
      }));
  }
}

// Computes the moments of each group of the block over the entire image, from the moments of all slabs and blocks.
// Calls f as combine_groups does.
template <int kSize, class F>
DEVICE void combine_slabs(const TilePosition<kSize>& position, const Moments* partial, uint32_t max_groups,
                          const F& f) {
  const GroupNormTiles& tiles = position.tiles;
  partial += position.first_of_image(max_groups);
  for (int g = wave_id(); g < static_cast<int>(position.groups); g += kGroupNormChannelsLastThreads / kWave) {
    const uint32_t group = position.first_group + static_cast<uint32_t>(g),
                   begin = group * tiles.group_channels.d, begin_block = divide(begin / kSize, tiles.columns),
                   last_block = divide((begin + tiles.group_channels.d - 1) / kSize, tiles.columns);
    const auto of_block = [&](uint32_t block) {
      const uint32_t first_group = divide(block * tiles.columns.d * kSize, tiles.group_channels);
      return partial + (block * max_groups + group - first_group) * tiles.slabs.d;
    };
    const float count = static_cast<float>(tiles.pixels) * static_cast<float>(tiles.group_channels.d);
    f(g, count, combine_in_wave(of_block(begin_block)->mean, count, [&](const auto& add) {
        for (uint32_t block = begin_block; block <= last_block; ++block) {
          const auto [low, high] = position.channels_of(block, group);
          const Moments* const slabs = of_block(block);
          for (auto s = static_cast<uint32_t>(lane_id()); s < tiles.slabs.d; s += kWave) {
            add(slabs[s], static_cast<float>(position.pixels_of(s)) * static_cast<float>(high - low));
          }
        }
      }));
  }
}

// The parameters of a work-item's channels, loaded before the statistics are known.
template <int kSize>
struct ChannelParameters {
  Channels<kSize> gamma = {}, beta = {};

  DEVICE ChannelParameters(const TilePosition<kSize>& position, const half_t* of_gamma,
                           const half_t* of_beta) {
    if (position.own_pixels == 0) return;
    gamma = load_channels<kSize>(of_gamma + position.channel(0));
    beta = load_channels<kSize>(of_beta + position.channel(0));
  }
};

// Normalizes the rounds from the last one, which is already loaded, to the first, because caches hold the most
// recently read pixels. Y may be X, because no other work-item reads these pixels afterwards.
template <int kSize>
DEVICE void normalize(const TilePosition<kSize>& position, const half_t* x, half_t* y,
                      RoundPixels<kSize>& round, const ChannelParameters<kSize>& parameters,
                      const GroupScales& scales, const Activation& act) {
  if (position.own_pixels == 0) return;
  float mean[kSize], scale[kSize];
  UNROLL for (int j = 0; j < kSize; ++j) {
    const uint32_t group = divide(position.channel(j), position.tiles.group_channels) - position.first_group;
    mean[j] = scales.mean[group];
    scale[j] = to_float(parameters.gamma.v[j]) * scales.scale[group];
  }
  for (uint32_t r = position.tiles.rounds - 1;; --r) {
    // Not unrolled, because each step would have a copy of all activations.
    NO_UNROLL for (int i = 0; i < kSteps; ++i) {
      const uint32_t at = position.step(r, i);
      if (at >= position.own_pixels) break;
      float value[kSize];
      UNROLL for (int j = 0; j < kSize; ++j) {
        value[j] = (to_float(round.at(0).v[j]) - mean[j]) * scale[j] + to_float(parameters.beta.v[j]);
      }
      UNROLL for (int next = 1; next < kSteps; ++next) round.step[next - 1] = round.step[next];
      activate(act, value);
      Channels<kSize> out;
      UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = from_float<half_t>(value[j]);
      store_channels(y + position.offset + at * position.tiles.channels, out);
    }
    if (r == 0) break;
    round.load(position, x, r - 1);
  }
}

// Stores the mean and the scale of a group in LDS. normalize() may read them after the next barrier.
DEVICE void store_scale(GroupScales& scales, int group, float count, const Moments& all, float epsilon) {
  if (lane_id() != 0) return;
  scales.mean[group] = all.mean;
  scales.scale[group] = rsqrt_exact(all.deviations / count + epsilon);
}

template <int kSize>
DEVICE void group_norm_channels_last(const GroupNormChannelsLastArgs& args) {
  SHARED(lds, GroupNormChannelsLastLds<kSize>);
  const half_t* const x = args.x;
  const TilePosition<kSize> position(args.tiles);
  const ChannelParameters<kSize> parameters(position, args.gamma, args.beta);
  RoundPixels<kSize> round;
  compute_channel_moments(position, x, round, lds);
  barrier();
  combine_rows(position, lds);
  barrier();
  combine_groups(position, lds, [&](int group, float count, const Moments& all) {
    store_scale(lds.scales, group, count, all, args.epsilon);
  });
  barrier();
  normalize(position, x, args.y, round, parameters, lds.scales, args.act);
}

template <int kSize>
DEVICE void group_norm_channels_last_stats(const GroupNormChannelsLastStatsArgs& args) {
  SHARED(lds, GroupNormChannelsLastLds<kSize>);
  const TilePosition<kSize> position(args.tiles);
  RoundPixels<kSize> round;
  compute_channel_moments(position, args.x, round, lds);
  barrier();
  combine_rows(position, lds);
  barrier();
  Moments* const partial = static_cast<Moments*>(args.partial) + position.first_of_image(args.groups);
  combine_groups(position, lds, [&](int group, float, const Moments& all) {
    const uint32_t row = position.block * args.groups + static_cast<uint32_t>(group);
    if (lane_id() == 0) partial[row * args.tiles.slabs.d + position.slab] = all;
  });
}

template <int kSize>
DEVICE void group_norm_channels_last_apply(const GroupNormChannelsLastApplyArgs& args) {
  SHARED(scales, GroupScales);
  const half_t* const x = args.x;
  const TilePosition<kSize> position(args.tiles);
  const ChannelParameters<kSize> parameters(position, args.gamma, args.beta);
  RoundPixels<kSize> round;
  round.load(position, x, args.tiles.rounds - 1);
  combine_slabs(position, static_cast<const Moments*>(args.partial), args.groups,
                [&](int group, float count, const Moments& all) {
                  store_scale(scales, group, count, all, args.epsilon);
                });
  barrier();
  normalize(position, x, args.y, round, parameters, scales, args.act);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL_OF(group_norm_channels_last_8_f16, group_norm_channels_last<8>, kGroupNormChannelsLastThreads,
          GroupNormChannelsLastArgs, x, gamma, beta, y)
KERNEL_OF(group_norm_channels_last_1_f16, group_norm_channels_last<1>, kGroupNormChannelsLastThreads,
          GroupNormChannelsLastArgs, x, gamma, beta, y)
KERNEL_OF(group_norm_channels_last_stats_8_f16, group_norm_channels_last_stats<8>,
          kGroupNormChannelsLastThreads, GroupNormChannelsLastStatsArgs, x, partial)
KERNEL_OF(group_norm_channels_last_stats_1_f16, group_norm_channels_last_stats<1>,
          kGroupNormChannelsLastThreads, GroupNormChannelsLastStatsArgs, x, partial)
KERNEL_OF(group_norm_channels_last_apply_8_f16, group_norm_channels_last_apply<8>,
          LaunchBounds(kGroupNormChannelsLastThreads, kGroupNormChannelsLastSharing),
          GroupNormChannelsLastApplyArgs, x, gamma, beta, partial, y)
KERNEL_OF(group_norm_channels_last_apply_1_f16, group_norm_channels_last_apply<1>,
          LaunchBounds(kGroupNormChannelsLastThreads, kGroupNormChannelsLastSharing),
          GroupNormChannelsLastApplyArgs, x, gamma, beta, partial, y)
