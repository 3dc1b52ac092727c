// Arguments of gather_elements_* and gather_nd_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kGatherElementsThreads = 256;
constexpr int kGatherElements = 4;  // per work-item

// y[i] = x[i'], where i' is i with index[i] as its position along one axis; y and index have the same shape.
struct GatherElementsArgs : Arguments<3, 112> {
  In x, index;  // index: int64_t, or int32_t if `narrow`; negative indices count from the end
  Out y;
  uint32_t total;
  Axes axes;            // of y
  Strides x_strides;    // 0 along the axis
  int32_t axis_stride;  // stride of x along the axis
  uint32_t size;        // size of x along the axis
  int32_t narrow;
};

// x [batch, sizes..., inner], index [batch, rows, k], y [batch, rows, inner]: each tuple of k indices selects
// a row of x.
struct GatherNDArgs : Arguments<3, 104> {
  In x, index;  // int64_t
  Out y;
  uint32_t total;
  Divisor inner, rows;
  uint32_t batch_stride;  // of x
  int32_t k;
  int32_t sizes[kMaxAxes];
  Strides strides;  // of x along the axes that a tuple indexes, from the first axis
};

}  // namespace graphopt::hip
