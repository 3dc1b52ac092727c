// ScaleShift[Add][act]: Y = act(X * scale + shift + R), scale and shift per channel (axis 1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "operators/activation_op.h"
#include "operators/table.h"

namespace graphopt {

struct ScaleShiftProblem {
  int64_t N = 0;      // dim 0
  int64_t C = 0;      // dim 1
  int64_t inner = 0;  // product of the other dims (1 for rank 2)
  bool has_residual = false;
  Activation act;
};

class ScaleShiftOp {
 public:
  using Problem = ScaleShiftProblem;
  static std::vector<ScaleShiftOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  Shape output(const Shapes& inputs) const { return inputs[0]; }
  void infer(const abi::ShapeInference& node) const;

 private:
  bool add_ = false;
  Activation act_;
};

}  // namespace graphopt
