// What top_k_* and arg_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kTopKChunk = 2048;    // entries that a work-group sorts
constexpr int kTopKThreads = 256;   // of the largest work-group
constexpr uint32_t kNoEntry = ~0u;  // the index of what fills a chunk up; it comes last

// What is compared.
enum class Ordered : int32_t {
  kFloat,
  kHalf,
  kInt64,
  kInt32,
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kUint32,
  kUint64
};

// x [outer, R, inner]. An entry is a number's key, which is larger for what comes first, and its index in R;
// of equal keys the smaller index comes first.

// Each work-group sorts a chunk of a row and keeps its first `keep`. A row's `count` entries are numbers of x
// where `from_x`, else those in keys and indices. They go to next_keys and next_indices, or, when the row is
// one chunk that is the last, to y and which.
struct TopKSortArgs : Arguments<7, 120> {
  In x, keys, indices;
  Out next_keys, next_indices, y, which;
  Divisor chunks, inner;          // of a row
  uint32_t first;                 // chunk of this launch
  uint32_t R, count, keep, size;  // size: of the sort, a power of two
  Ordered order;
  int32_t smallest, from_x, to_y, threads;
};

// Merges neighbouring sorted runs of `run` entries, of which a row has `runs`, into runs of `next`: a
// work-item for each entry. The last two go to y and which, of which there are `next`.
struct TopKMergeArgs : Arguments<7, 120> {
  In x, keys, indices;
  Out next_keys, next_indices, y, which;
  Divisor count, run, inner;  // count: of a row
  uint32_t total, runs, next, R;
  Ordered order;
  int32_t to_y;
};

// y [outer, inner]: the index in R of what comes first of x [outer, R, inner], or, where that is joined in
// several steps, the entries that come first of slices. A step reads `count` numbers of x where `from_x`, else
// entries [outer, count, inner]. Long rows (inner is 1) take a work-group each, to y, all else a work-item for each
// of [outer, stride], which looks at every stride-th of [count, inner].
struct ArgArgs : Arguments<6, 112> {
  In x, keys, indices;
  Out next_keys, next_indices, y;
  Divisor inner, stride;
  uint32_t total, R, count;
  Ordered order;
  int32_t smallest, last, from_x, to_y, row;  // last: of equal ones the last; row: the first of this launch
};

}  // namespace graphopt::hip
