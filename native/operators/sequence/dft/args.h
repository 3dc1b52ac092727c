// Arguments of dft_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kDftThreads = 128;
constexpr int kDftLines = 4;  // lines per work-group

// table [L] of (cos, sin) of 2 pi j / L.
struct DftTableArgs : Arguments<1, 16> {
  Out table;
  uint32_t L;
};

// Strides in elements: line i begins at i / per * outer + i % per * line, and its elements are `element` apart.
struct DftStrides {
  int64_t outer, line, element;
};

// Output k < K of each line is factor times the sum over n < N of input n times e^(sign 2 pi i k n / L).
struct DftArgs : Arguments<4, 120> {
  In x, window;  // window: null, or N factors
  In table;
  Out y;
  DftStrides from, to;
  Divisor per;
  uint32_t lines;
  int32_t N, L, K;
  int32_t complex;  // x holds complex elements
  float sign, factor;
};

}  // namespace graphopt::hip
