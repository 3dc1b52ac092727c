// WinogradConv[Add][act]: a 3x3 convolution with strides 1, dilations 1 and one group, of NCHW tensors with OIHW
// weights; WinogradConv[Add]PRelu: with one PRelu slope for each channel.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "operators/conv/convolution/problem.h"
#include "operators/operator.h"

namespace graphopt {

// Returns the problem of a 3x3 convolution. `pads` are [top, left, bottom, right]. Unknown sizes of X are 0. Sizes of Y
// are negative if the padded X is smaller than the window.
inline ConvolutionProblem convolution_3x3(int64_t N, int64_t C, int64_t H, int64_t W, int64_t M,
                                          const std::vector<int64_t>& pads) {
  ConvolutionProblem p;
  p.has_bias = true;
  p.N = N;
  p.C = C;
  p.M = M;
  const int64_t in[] = {H, W};
  for (size_t i = 0; i < 2; ++i) {
    p.in[1 + i] = in[i];
    p.kernel[1 + i] = 3;
    p.pad[1 + i] = pads[i];
    p.out[1 + i] = in[i] + pads[i] + pads[2 + i] - 2;
  }
  return p;
}

class WinogradConvOp final : public WeightedOperator<ConvolutionProblem> {
 public:
  explicit WinogradConvOp(Tail tail) : WeightedOperator("WinogradConv", tail) {}
  static std::vector<WinogradConvOp> all();
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Problem static_problem(const std::optional<Shape>& x, const Shape& w) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  std::vector<int64_t> pads_;
};

}  // namespace graphopt
