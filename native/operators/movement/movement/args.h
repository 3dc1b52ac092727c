// Arguments of strided_copy_*, strided_copy_to_packs_* and pad_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kCopyThreads = 256;
// Elements per work-item of strided_copy_*; the other kernels have one pack per work-item.
constexpr int kCopyElements = 4;

// y[y_offset + i . y_strides] = x[x_offset + i . x_strides] for the `total` index vectors i of the axes.
struct StridedCopyArgs : Arguments<2, 120> {
  In x;
  Out y;
  uint32_t total;
  Axes axes;
  Strides x_strides, y_strides;
  uint32_t x_offset, y_offset;
};

// One integer for each axis, innermost first.
struct PadAxes {
  int32_t d[kMaxAxes];
};

enum class PadMode : int32_t { kConstant, kReflect, kEdge, kWrap };

// y[i] = x[i - before]. Where i - before is outside of x, y[i] is `value` or an element of x, depending on the mode.
struct PadArgs : Arguments<2, 152> {
  In x;
  Out y;
  uint64_t value;  // the bits of an element
  uint32_t total;
  uint32_t x_offset;  // first element of x that is not cropped
  Axes axes;          // of y
  Strides x_strides;  // of x
  PadAxes before, x_dims;
  PadMode mode;
  int32_t rank;
  // 1: stores have 16 bytes. The address of y is then a multiple of 16, and its rows have at least 16 bytes.
  int32_t uses_packs;
};

}  // namespace graphopt::hip
