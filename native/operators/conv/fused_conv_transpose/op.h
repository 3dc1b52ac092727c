// FusedConvTranspose[Add][act]: Y = act(conv_transpose(X, W) + B + R), a transposed convolution over one to three
// axes with what follows it; FusedConvTranspose[Add]PRelu: Y = PRelu(conv_transpose(X, W) + B + R) with a slope for
// each channel of Y.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "operators/conv/convolution/problem.h"
#include "operators/operator.h"
#include "operators/packed.h"

namespace graphopt {

class FusedConvTransposeOp final : public WeightedOperator<ConvolutionProblem> {
 public:
  explicit FusedConvTransposeOp(Tail tail) : WeightedOperator("FusedConvTranspose", tail) {}
  static std::vector<FusedConvTransposeOp> all();
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Problem static_problem(const std::optional<Shape>& x, const Shape& w) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  // Without N, `in` and `out`.
  Problem window_problem(const Shape& w) const;
  // Sizes from the shape of X, in which unknown dimensions are negative. Throws Error where they are too large.
  void set_sizes(Problem& p, const Shape& x) const;

  std::vector<int64_t> pads_, strides_, dilations_, output_padding_;
  int64_t group_ = 1;
};

}  // namespace graphopt

namespace graphopt::cpu {

// y = act(conv_transpose(x, w) + b + r), summed in float32. T is float or graphopt::half. What w is packed to depends
// on p.groups, p.M, p.C, p.kernel, p.stride and p.dilation.
GRAPHOPT_PACKED_KERNELS(GRAPHOPT_CPU_KERNEL, fused_conv_transpose, ConvolutionProblem, OnlyWay)

// The same with slopes, one for each channel of y, for what is below zero, and no activation.
GRAPHOPT_CPU_KERNEL(void, prelu_conv_transpose,
                    (const ConvolutionProblem& p, const T* x, const void* weights, const T* b, const T* r,
                     const T* slopes, T* y, Parallel& parallel, void* workspace),
                    (p, x, weights, b, r, slopes, y, parallel, workspace))

}  // namespace graphopt::cpu
