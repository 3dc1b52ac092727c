// WinogradConv[Add][act]: a 3x3 convolution with strides, dilations and group 1, NCHW, OIHW weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "operators/activation_op.h"
#include "operators/table.h"

namespace graphopt {

struct ConvProblem {
  int64_t N = 0, C = 0, H = 0, W = 0;  // input
  int64_t M = 0;                       // output channels
  int64_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
  bool has_residual = false;
  Activation act;

  int64_t OH() const { return H + pad_top + pad_bottom - 2; }
  int64_t OW() const { return W + pad_left + pad_right - 2; }
};

class WinogradConvOp {
 public:
  using Problem = ConvProblem;
  static std::vector<WinogradConvOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  // Dims that are not known become 0.
  Problem static_problem(const std::optional<Shape>& x, const Shape& w) const;
  Shape output(const Shapes& inputs) const;
  void infer(const ShapeInference& node) const;

 private:
  bool add_ = false;
  Activation act_;
  std::vector<int64_t> pads_;
};

}  // namespace graphopt
