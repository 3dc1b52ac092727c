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
  int64_t block = 1;                           // size of a block, for kBlocks
  ElementType quantized = ElementType::kInt8;  // a type of 4, 8 or 16 bits, or kInt32 if `dequantizes`
  bool half = false;                           // the scales and the real tensor are float16
  bool zero = false;                           // a zero point is given
  bool dequantizes = false;                    // DequantizeLinear
  bool zero_first = false;                     // the zero point is added before rounding, not after it
};

// Inputs x, scale, zero point if any; output y. `aligned`: all addresses are multiples of 16 bytes. Throws
// std::invalid_argument if a size is too large.
Plan quantize_plan(const QuantizeProblem& p, bool aligned);

// Inputs: the minimum and the maximum of a float tensor; outputs: its scale, and its zero point in uint8.
Plan dynamic_scale_plan();

}  // namespace graphopt::gpu
