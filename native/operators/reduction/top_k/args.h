// Arguments of top_k_* and arg_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kTopKChunk = 2048;    // maximum number of entries that a work-group sorts
constexpr int kTopKThreads = 256;   // size of the largest work-group
constexpr uint32_t kNoEntry = ~0u;  // index of the padding entries of a chunk, which are sorted last

// The type of the compared elements.
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

// x [outer, R, inner]. An entry is the key of an element and its index in R. Entries are sorted by descending
// key, then by ascending index.

// Each work-group sorts a chunk of a row and keeps its first `keep` entries. A row has `count` entries: elements of x
// if `from_x` is set, else entries in keys and indices. The result is written to y and y_indices if the row is a single
// chunk, else to next_keys and next_indices.
struct TopKSortArgs : Arguments<7, 120> {
  In x, keys, indices;
  Out next_keys, next_indices, y, y_indices;
  Divisor chunks, inner;          // chunks of a row; inner size of x
  uint32_t first;                 // index of the first chunk of this launch
  uint32_t R, count, keep, size;  // size: entries to sort, a power of two
  Ordered order;
  int32_t smallest, from_x, to_y, threads;
};

// Merges pairs of adjacent sorted runs of `run` entries into runs of `next` entries; a row has `runs` runs. One
// work-item for each entry. The last merge writes its `next` entries to y and y_indices.
struct TopKMergeArgs : Arguments<7, 120> {
  In x, keys, indices;
  Out next_keys, next_indices, y, y_indices;
  Divisor count, run, inner;  // count: entries of a row
  uint32_t total, runs, next, R;
  Ordered order;
  int32_t to_y;
};

// y [outer, inner]: the index in R of the first entry of x [outer, R, inner] in sorted order. There may be several
// steps. Each step but the last divides R into slices and writes the first entry of each slice. A step reads `count`
// elements of x along R if `from_x` is set, else the entries [outer, count, inner] of the previous step. A work-group
// of arg_rows processes a long row (inner is 1) and writes to y. A work-item of arg_columns computes one of [outer,
// stride] entries from every stride-th entry of [count, inner].
struct ArgArgs : Arguments<6, 112> {
  In x, keys, indices;
  Out next_keys, next_indices, y;
  Divisor inner, stride;
  uint32_t total, R, count;
  Ordered order;
  int32_t smallest, last, from_x, to_y,
      row;  // last: selects the last of equal elements; row: the first row of this launch
};

}  // namespace graphopt::hip
