// FusedConv[Add][act][Bf16]: Y = act(conv(X, W) + B + R), a convolution over one to three axes with what
// follows it; FusedConv[Add]PRelu: Y = PRelu(conv(X, W) + B + R) with a slope for each channel of Y. FusedConvPairs[Add][act]Bf16: the same over two axes, from X in either layout to pairs of channels
// and, where it is wanted, Y. FusedConvFromPairs[Add][act]Bf16: from pairs of channels to Y.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "operators/conv/convolution/problem.h"
#include "operators/operator.h"

namespace graphopt {

// Which of X and the result may lie, or lie, in pairs of channels.
enum class PairsOf { kNone, kBoth, kX };

class FusedConvOp final : public WeightedOperator<ConvolutionProblem> {
 public:
  explicit FusedConvOp(Tail tail, bool bfloat16 = false, PairsOf pairs = PairsOf::kNone)
      : WeightedOperator(pairs == PairsOf::kNone   ? "FusedConv"
                         : pairs == PairsOf::kBoth ? "FusedConvPairs"
                                                   : "FusedConvFromPairs",
                         tail, bfloat16),
        pairs_(pairs) {}
  static std::vector<FusedConvOp> all();
  static std::vector<FusedConvOp> all_bfloat16();
  static std::vector<FusedConvOp> all_pairs(PairsOf pairs);
  std::vector<Operand> inputs() const override;
  size_t outputs() const override { return pairs_ == PairsOf::kBoth ? 2 : 1; }
  std::vector<ElementType> output_types() const override;
  Shape output_beside(const Shape& y, size_t i) const override;
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Problem static_problem(const std::optional<Shape>& x, const Shape& w) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;
  bool pairs() const { return pairs_ != PairsOf::kNone; }

 private:
  // X as if its channels were an axis.
  Shape plain(const Shape& x) const;
  // Without N, `in` and `out`.
  Problem window_problem(const Shape& w) const;
  // Sizes from the shape of X, in which unknown dimensions are negative.
  void set_sizes(Problem& p, const Shape& x) const;

  std::vector<int64_t> pads_, strides_, dilations_;
  int64_t group_ = 1;
  PairsOf pairs_;
};

}  // namespace graphopt
