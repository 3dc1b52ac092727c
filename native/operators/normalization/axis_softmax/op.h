// AxisSoftmax: Softmax over an axis other than the last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "operators/operator.h"

namespace graphopt {

// Softmax over the axis D of X and Y [outer, D, inner].
struct AxisSoftmaxProblem {
  int64_t outer = 0, D = 0, inner = 0;
};

class AxisSoftmaxOp final : public Operator<AxisSoftmaxProblem> {
 public:
  static std::vector<AxisSoftmaxOp> all() { return {AxisSoftmaxOp()}; }
  std::string name() const override { return "AxisSoftmax"; }
  std::vector<Operand> inputs() const override { return {Operand::kTensor}; }
  void read(const Node& node) override { axis_ = node.get_int("axis"); }
  Problem problem(const Shapes& inputs) const override;

 private:
  int64_t axis_ = 0;
};

}  // namespace graphopt

namespace graphopt::cpu {

// y may be x.
GRAPHOPT_CPU_KERNEL(void, axis_softmax, (const AxisSoftmaxProblem& p, const T* x, T* y, Parallel& parallel),
                    (p, x, y, parallel))

}  // namespace graphopt::cpu
