// FusedConv[Add][act][Bf16]: Y = act(conv(X, W) + B + R), a convolution over one to three axes with what
// follows it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "operators/convolution/problem.h"
#include "operators/operator.h"

namespace graphopt {

class FusedConvOp final : public WeightedOperator<ConvolutionProblem> {
 public:
  explicit FusedConvOp(Tail tail, bool bfloat16 = false) : WeightedOperator("FusedConv", tail, bfloat16) {}
  static std::vector<FusedConvOp> all();
  static std::vector<FusedConvOp> all_bfloat16();
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Problem static_problem(const std::optional<Shape>& x, const Shape& w) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  // Without N, `in` and `out`.
  Problem window_problem(const Shape& w) const;
  // Sizes from the shape of X, in which unknown dimensions are negative.
  void set_sizes(Problem& p, const Shape& x) const;

  std::vector<int64_t> pads_, strides_, dilations_;
  int64_t group_ = 1;
};

}  // namespace graphopt
