// Linear[Add][act]: Y = act(X W + b + R), a fully connected layer over the last axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "operators/activation_op.h"
#include "operators/table.h"

namespace graphopt {

struct LinearProblem {
  int64_t rows = 0;  // product of all dims of X but the last
  int64_t K = 0;     // last dim of X
  int64_t N = 0;     // last dim of Y
  bool has_residual = false;
  Activation act;
};

// The only ones without a CPU kernel: on the CPU the body runs, which is what the runtime's own fusions know.
class LinearOp {
 public:
  using Problem = LinearProblem;
  static std::vector<LinearOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  Shape output(const Shapes& inputs) const;
  void infer(const abi::ShapeInference& node) const;

 private:
  bool add_ = false;
  Activation act_;
};

}  // namespace graphopt
