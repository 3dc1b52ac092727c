// Arguments of scatter_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kScatterThreads = 256;
// Elements per work-item. They are adjacent in scatter_clear and scatter_reduce_scalars_*.
constexpr int kScatterElements = 4;

// How a target is combined with its updates; kNone: the last update replaces the target.
enum class ScatterReduction : int32_t { kNone, kAdd, kMul, kMin, kMax };

struct ScatterClearArgs : Arguments<1, 16> {
  Out first;
  uint32_t targets;
  int32_t unused;
};

// An update and 1 + the index of the next update in its list (0: none). One memory access reads both.
template <class T>
struct alignas(sizeof(T) == 8 ? 16 : 8) ScatterLinked {
  T update;
  uint32_t next;
};

// Links the updates of each target into a list: first[target] and next[update] are 1 + the index of an
// update, or 0 at the end. For scatter_link_scalars_* the elements of `next` are ScatterLinked.
struct ScatterLinkArgs : Arguments<4, 136> {
  In index;    // int64_t, or int32_t if `narrow`; negative indices count from the end
  In updates;  // read by scatter_link_scalars_*
  Out first, next;
  uint32_t count;
  int32_t narrow;
  // For ScatterND `tuple` is the length of a tuple, and sizes and strides are those of its axes. For
  // ScatterElements it is 0, and sizes[0] and axis_stride are those of the scattered axis.
  int32_t tuple;
  int32_t axis_stride;
  int32_t sizes[kMaxAxes];
  Strides strides;  // of the targets; for ScatterElements along `axes`, with 0 for the scattered axis
  Axes axes;        // for ScatterElements: of the updates
};

// y = x [targets, inner], with updates [updates, inner].
struct ScatterApplyArgs : Arguments<5, 64> {
  In x, updates, first, next;
  Out y;
  uint32_t total;
  Divisor inner;
  ScatterReduction reduction;
  int32_t unused;
};

}  // namespace graphopt::hip
