// QuantizedConv[act]: a convolution of 8-bit integers in channels last, with requantization and activation. CPU only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "operators/conv/convolution/problem.h"
#include "operators/operator.h"

namespace graphopt {

// Inputs: X int8 or uint8 [N, H, W, C], x_scale float, x_zero_point of X's type, W int8 [M, C / group, KH, KW], w_scale
// float [M], y_scale float, y_zero_point of X's type, B int32 [M]. The scales and zero points of X and Y have one
// element. The scale of B is x_scale w_scale. Y [N, OH, OW, M] has X's type. There is one group, or one group for each
// channel with M = C.
class QuantizedConvOp final : public Operator<ConvolutionProblem> {
 public:
  explicit QuantizedConvOp(ActivationKind kind) { act_.kind = kind; }
  static std::vector<QuantizedConvOp> all();
  std::string name() const override;
  std::vector<Operand> inputs() const override;
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;
  // Returns the problem without N, `in` and `out`. It determines the packed weights.
  Problem window_problem(const Shape& w) const;

 private:
  Activation act_;
  std::vector<int64_t> pads_, strides_, dilations_;
  int64_t group_ = 1;
};

}  // namespace graphopt

namespace graphopt::cpu {

// The scales and zero points of a convolution. int8 elements and zero points are processed as uint8, with 128 added.
struct ConvQuantization {
  bool is_signed;  // X and Y are int8
  int32_t x_zero, y_zero;
  float x_scale, y_scale;
  const float* w_scale;  // for each channel of Y
  const int32_t* bias;   // in units of x_scale w_scale
};

// T is uint8_t; q.is_signed gives the type of X and Y. The result does not depend on the number of threads. Sums wrap
// modulo 2^32. Packed weights depend on p.groups, p.M, p.C, p.kernel, and on whether p.dilation[2] is 1.
GRAPHOPT_CPU_KERNEL(size_t, quantized_conv_weights, (const ConvolutionProblem& p), (p))
GRAPHOPT_CPU_KERNEL(void, quantized_conv_prepare,
                    (const ConvolutionProblem& p, const int8_t* w, void* weights), (p, w, weights))
GRAPHOPT_CPU_KERNEL(size_t, quantized_conv_workspace, (const ConvolutionProblem& p, bool is_signed),
                    (p, is_signed))
GRAPHOPT_CPU_KERNEL(void, quantized_conv,
                    (const ConvolutionProblem& p, const ConvQuantization& q, const T* x, const void* weights,
                     T* y, Parallel& parallel, void* workspace),
                    (p, q, x, weights, y, parallel, workspace))

}  // namespace graphopt::cpu
