// Arguments of range_*, fill_*, trilu_* and one_hot_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kGenerateThreads = 256;
// Elements per work-item of range_*; a work-item of the other kernels has one pack.
constexpr int kGenerateElements = 4;

// y[i] = start + i step.
struct RangeArgs : Arguments<1, 40> {
  Out y;
  uint32_t total;
  float start, step;  // for floats
  int32_t unused;
  int64_t integer_start, integer_step;  // for integers
};

// y[i] = the element with these bits.
struct FillArgs : Arguments<1, 24> {
  Out y;
  uint64_t bits;
  uint32_t total;
  int32_t vectors;  // 1: the address of y is a multiple of 16
};

// x and y [batch, rows, columns]: y = x on diagonal k and above it (`upper`) or below it, else 0.
struct TriluArgs : Arguments<2, 64> {
  In x;
  Out y;
  uint32_t total;
  Divisor columns, rows;
  int32_t upper;
  int64_t k;
  int32_t vectors;  // 1: both pointers are multiples of 16
  int32_t unused;
};

enum class IndexType : int32_t {
  kInt64,
  kInt32,
  kUint8,
  kFloat,
  kInt16,
  kInt8,
  kUint64,
  kUint32,
  kUint16,
  kHalf
};

// y [outer, depth, inner] = values[1] if the position in depth equals index [outer, inner], else values[0].
struct OneHotArgs : Arguments<3, 64> {
  In index, values;
  Out y;
  uint32_t total;
  Divisor inner, depth;
  IndexType type;
  int32_t vectors;  // 1: the address of y is a multiple of 16
  int32_t unused;
};

}  // namespace graphopt::hip
