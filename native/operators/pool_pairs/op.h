// MaxPoolPairsBf16: MaxPool over the last two axes of what lies in pairs of channels (operators/fused_conv/op.h).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "device/cpu/isa.h"
#include "device/cpu/parallel.h"
#include "operators/operator.h"

namespace graphopt {

// x [planes, in.., 2] and y [planes, out.., 2] in bfloat16.
struct PoolPairsProblem {
  using Axes = std::array<int64_t, 2>;
  int64_t planes = 0;
  Axes in = {1, 1}, out = {1, 1}, kernel = {1, 1}, stride = {1, 1}, dilation = {1, 1};
  Axes pad = {0, 0};  // at the beginning; at the end is what `out` leaves
};

class PoolPairsOp final : public Operator<PoolPairsProblem> {
 public:
  static std::vector<PoolPairsOp> all() { return {PoolPairsOp()}; }
  std::string name() const override { return "MaxPoolPairsBf16"; }
  std::vector<Operand> inputs() const override { return {Operand::kTensor}; }
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  std::vector<int64_t> kernel_, pads_, strides_, dilations_;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is uint32_t: two numbers, the first channel's in the lower half.
GRAPHOPT_CPU_KERNEL(size_t, pool_pairs_workspace, (const PoolPairsProblem& p, size_t lanes), (p, lanes))
GRAPHOPT_CPU_KERNEL(void, pool_pairs,
                    (const PoolPairsProblem& p, const T* x, T* y, Parallel& parallel, void* workspace),
                    (p, x, y, parallel, workspace))

}  // namespace graphopt::cpu
