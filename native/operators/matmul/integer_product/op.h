// Matrix multiplication of integers on a GPU.
#pragma once

#include <optional>

#include "device/launch.h"
#include "operators/conv/convolution/problem.h"
#include "operators/matmul/matmul/problem.h"

namespace graphopt::gpu {

// Whether 8-bit elements have a zero point, and whether it differs for each row, column or filter.
struct ZeroPoint {
  bool given = false, many = false;
};

struct IntegerProblem {
  ElementType left = ElementType::kUint8,
              right = ElementType::kUint8;  // both of 8 bits, or both the same type (of 16 bits only int16)
  ZeroPoint left_zero, right_zero;
  bool has_bias = false;
  int64_t bias_m = 1, bias_n = 0;  // strides of the bias over rows and columns
};

// Inputs L, R, their zero points, the bias. Output Y: int32 for 8 and 16 bits, else the type of L. Ignores the
// problem's alpha and beta. Throws std::invalid_argument if a size is too large.
Plan integer_product_plan(const GemmProblem& p, const IntegerProblem& integers);

// The same with filters as L and windows of images as R; the bias has one element for each filter. Y is int32.
Plan integer_window_plan(const ConvolutionProblem& p, const IntegerProblem& integers);

struct ScaleProblem {
  int64_t outer = 1, M = 1, N = 1;
  bool left_many = false, right_many = false;  // a scale for each row, for each column; else one for all
  bool has_bias = false;                       // float [N]
  std::optional<ElementType> quantized;        // the 8-bit type of Y; empty: float
  bool has_zero = false;                       // Y has a zero point
  float alpha = 1;
};

// Inputs: sums [outer, M, N], the scales of L and R, scale and zero point of Y, bias; output Y.
Plan scale_products_plan(const ScaleProblem& p);

}  // namespace graphopt::gpu
