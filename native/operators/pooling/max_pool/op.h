// MaxPoolNchw2cBf16: MaxPool over H and W in the NCHW2c bf16 layout (operators/conv/convolution/problem.h).
// MaxPoolPlanes: the same in NCHW.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "operators/operator.h"

namespace graphopt {

// x [planes, in..] and y [planes, out..] consist of words. A word is one float or float16 element, or two
// bfloat16 elements.
struct MaxPoolProblem {
  using Axes = std::array<int64_t, 2>;
  int64_t planes = 0;
  Axes in = {1, 1}, out = {1, 1}, kernel = {1, 1}, stride = {1, 1}, dilation = {1, 1};
  Axes pad = {0, 0};  // at the start; `out` implies the padding at the end
};

class MaxPoolOp final : public Operator<MaxPoolProblem> {
 public:
  explicit MaxPoolOp(bool nchw2c) : nchw2c_(nchw2c) {}
  std::string name() const override { return nchw2c_ ? "MaxPoolNchw2cBf16" : "MaxPoolPlanes"; }
  std::vector<Operand> inputs() const override { return {Operand::kTensor}; }
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  bool nchw2c_;
  std::vector<int64_t> kernel_, pads_, strides_, dilations_;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float, half, or uint32_t: two bfloat16 elements, the first channel in the lower half.
GRAPHOPT_CPU_KERNEL(size_t, max_pool_workspace, (const MaxPoolProblem& p, size_t workers), (p, workers))
GRAPHOPT_CPU_KERNEL(void, max_pool,
                    (const MaxPoolProblem& p, const T* x, T* y, Parallel& parallel, void* workspace),
                    (p, x, y, parallel, workspace))

}  // namespace graphopt::cpu
