// Arguments of the linear_* kernels.
#pragma once

#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kLinearThreads = 256;  // a work-item processes 16 bytes

struct LinearArgs : Arguments<4, 64> {
  In gemm;  // X W
  Constant bias;
  In residual;     // may be null
  Out y;           // may be `gemm`
  uint32_t total;  // elements, in rows of `columns`
  Divisor columns;
  int32_t vectors;  // whether all pointers and sizes of rows are multiples of 16 bytes
  Activation act;
};

}  // namespace graphopt::hip
