// The kernel of integer convolutions, which op.cpp registers.
#pragma once

#include <vector>

#include "operators/matmul/integer_matmul/matmul.h"
#include "operators/window.h"

namespace graphopt::integer_matmul {

// Of the operands A and B of IntegerMatMul, A is X and B is W.
class IntegerConv final : public IntegerMatMul {
 public:
  // `last`: X, W and Y are in channels last. If it is false, the node's attribute channels_last puts X and Y, but not
  // W, in channels last.
  IntegerConv(const Node& node, gpu::Device& device, Operands in, bool last = false);

  void prepare(const Node& node) override;

 private:
  void plan(Call& call, Program& program) const override;

  // Plans a convolution in channels last. Tensors in channels first are transposed.
  void plan_last(const Call& call, Program& program, const ConvolutionProblem& p, bool depthwise,
                 Ref y) const;

  // Returns packed filters for the convolution of gpu::space_to_depth or with merged groups; none if
  // prepare_right packs the filters. `w`: the filters. `s`: their shape in channels first.
  std::vector<uint8_t> pack_filters(const Tensor& w, const Shape& s);

  // Plans a convolution in channels first. Tensors in channels last are transposed.
  void plan_first(const Call& call, Program& program, const ConvolutionProblem& p, Ref y) const;

  // Writes the problem to `p` and returns the shape of Y. All shapes are in channels first.
  Shape describe_convolution(const Shape& x, const Shape& w, ConvolutionProblem& p) const;

  Window window_;
  int64_t groups_;
  bool last_, last_filters_;
  bool is_space_to_depth_ = false;  // the packed filters are those of gpu::space_to_depth
  hip::IntegerSum sum_;             // of Y and the residual
};

}  // namespace graphopt::integer_matmul
