// FusedConvTranspose[Add][act]: Y = act(conv_transpose(X, W) + B + R), a transposed convolution over one to three
// axes with its epilogue; FusedConvTranspose[Add]PRelu: Y = PRelu(conv_transpose(X, W) + B + R) with a slope for
// each channel of Y.
#pragma once

#include <cstdint>
#include <vector>

#include "operators/conv/fused_conv/op.h"
#include "operators/packed.h"

namespace graphopt {

class FusedConvTransposeOp final : public WindowedOperator {
 public:
  explicit FusedConvTransposeOp(Tail tail) : WindowedOperator("FusedConvTranspose", tail) {}
  static std::vector<FusedConvTransposeOp> all();
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  void set_channels(Problem& p, const Shape& w) const override;
  void set_sizes(Problem& p, const Shape& x) const override;

  std::vector<int64_t> output_padding_;
};

}  // namespace graphopt

namespace graphopt::cpu {

// y = act(conv_transpose(x, w) + b + r), summed in float32. T is float or graphopt::half. The packed form of
// w depends on p.groups, p.M, p.C, p.kernel, p.stride and p.dilation.
GRAPHOPT_PACKED_KERNELS(GRAPHOPT_CPU_KERNEL, fused_conv_transpose, ConvolutionProblem, OnlyAlgorithm)

}  // namespace graphopt::cpu
