// Functions of quantized 8-bit values on a GPU.
#pragma once

#include "blocks/gpu/walk_plan.h"
#include "operators/quantized/quantized/args.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

using hip::QuantizedOp;

// y = quantize(act(op(dequantize(a), dequantize(b)))) with numpy broadcasting. kActivate and kTable have no b. The only
// activation of kAdd is Relu; kMul and kTable have none.
struct QuantizedProblem {
  QuantizedOp op = QuantizedOp::kActivate;
  Activation act;
  bool is_signed = false;
  bool a_zero = false, b_zero = false, y_zero = false;  // whether the zero points are given
  Shape a, b, y;
};

// Inputs: a, its scale and zero point, b, its scale and zero point, scale and zero point of y; for kTable, a and the
// table. Output y. `aligned`: all addresses are multiples of 16 bytes. Throws std::invalid_argument if a or b does not
// broadcast to y, if a size is too large, or if too many axes remain after merging.
Plan quantized_plan(const QuantizedProblem& p, bool aligned);

// Lines of x [outer, size, inner] along `size`.
struct QuantizedLines {
  int64_t outer = 1, size = 1, inner = 1;
  bool is_signed = false;
  bool x_zero = false, y_zero = false;
};

// Inputs x, its scale and zero point, scale and zero point of y; output the means y [outer, inner]. `aligned`: all
// addresses are multiples of 16 bytes.
Plan quantized_mean_plan(const QuantizedLines& p, bool aligned);

// Inputs x, the output of quantized_exponentials_plan, an unused input, scale and zero point of y; output y like x. The
// zero point of x cancels.
Plan quantized_softmax_plan(const QuantizedLines& p);

// Input: the scale of x. Output: for each difference d of two bytes, the float e^(-d scale), times a common factor.
// With the factor, a sum of `size` exponentials does not overflow.
Plan quantized_exponentials_plan(int64_t size);

}  // namespace graphopt::gpu
