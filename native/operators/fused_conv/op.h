// FusedConv[Add][act][Bf16]: Y = act(conv(X, W) + B + R), a convolution over one to three axes with what
// follows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "operators/activation_op.h"
#include "operators/fused_conv/problem.h"
#include "operators/table.h"
#include "operators/tail.h"

namespace graphopt {

class FusedConvOp {
 public:
  using Problem = FusedConvProblem;
  static std::vector<FusedConvOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  // What is known when a kernel is created: sizes of x that are not are 0.
  Problem static_problem(const std::optional<Shape>& x, const Shape& w) const;
  Shape output(const Shapes& inputs) const;
  void infer(const ShapeInference& node) const;
  // Of a node that was read.
  Tail tail() const { return {act_, add_}; }

 protected:
  Problem window_problem(const Shape& w) const;

  bool add_ = false;
  bool bfloat16_ = false;
  Activation act_;
  std::vector<int64_t> pads_, strides_, dilations_;
  int64_t group_ = 1;
};

// Their factors are rounded to bfloat16. For the CPU alone, and for float.
class FusedConvBf16Op : public FusedConvOp {
 public:
  static std::vector<FusedConvBf16Op> all();
};

}  // namespace graphopt
