// QuantizeLinear and DequantizeLinear on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/quantized/quantize/args.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

using hip::Scales;

// x and y [outer, size, inner].
struct QuantizeProblem {
  int64_t outer = 1, size = 1, inner = 1;
  Scales scales = Scales::kOne;
  int64_t block = 1;                        // places of a block, of kBlocks
  ElementType number = ElementType::kInt8;  // of x or y: kInt32 if `back`, and those of 4, 8 and 16 bits
  bool half = false;                        // scales and the other tensor are float16
  bool zero = false;                        // there are zero points
  bool back = false;                        // DequantizeLinear
  bool zero_first = false;                  // the zero point is added before rounding, not after it
};

// Inputs x, scale, zero point if any; output y. `aligned`: all pointers are multiples of 16. Throws
// std::invalid_argument.
Plan quantize_plan(const QuantizeProblem& p, bool aligned);

// Inputs: the least and the most of a tensor of float; outputs: its scale and its zero point in uint8.
Plan dynamic_scale_plan();

}  // namespace graphopt::gpu
