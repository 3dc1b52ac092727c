// Arguments of group_norm_*.
#pragma once

#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kGroupNormMaxThreads = 1024;
constexpr int kGroupNormSplitThreads = 512;
// Elements per work-item of group_norm_small_* and group_norm_large_*. group_norm_stats_* and group_norm_apply_* have
// as many as group_norm_small_*.
constexpr int kGroupNormSmallElements = 16;
constexpr int kGroupNormLargeElements = 40;
// Elements of a part, which is the work of one work-group of group_norm_stats_* and group_norm_apply_*.
constexpr int kGroupNormPart = kGroupNormSplitThreads * kGroupNormSmallElements;

// One work-group for each image and group.
struct GroupNormArgs : Arguments<4, 88> {
  In x;
  Constant gamma, beta;
  Out y;
  uint32_t size;  // elements of a group: a multiple of a pack; they fit into the work-group's registers
  uint32_t group_channels;
  Divisor groups, inner;
  float epsilon;
  int32_t threads;
  Activation act;
};

// One work-group for each part of a group.
struct GroupNormStatsArgs : Arguments<2, 40> {
  In x;
  Out partial;  // [images groups][parts][2]: mean and sum of squared deviations
  uint32_t size;
  Divisor parts;
  int32_t vectors;  // 1: the address of X and the bytes of a group are multiples of 16
};

// One work-group for each part of a group.
struct GroupNormApplyArgs : Arguments<5, 104> {
  In x;
  Constant gamma, beta;
  In partial;
  Out y;
  uint32_t size, group_channels;
  Divisor groups, inner, parts;
  float epsilon;
  int32_t vectors;
  Activation act;
};

}  // namespace graphopt::hip
