// Linear[Add][act]: Y = act(X W + b + R), a fully connected layer over the last axis.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/launch.h"
#include "operators/activation_op.h"
#include "operators/linear/problem.h"
#include "operators/matmul/op.h"
#include "operators/table.h"

namespace graphopt {

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
  Problem static_problem(const std::optional<Shape>& x, const Shape& w) const;
  Shape output(const Shapes& inputs) const;
  void infer(const ShapeInference& node) const;

 protected:
  bool add_ = false;
  bool bfloat16_ = false;
  Activation act_;
};

// Their factors are rounded to bfloat16. For the CPU alone, and for float.
class LinearBf16Op : public LinearOp {
 public:
  static std::vector<LinearBf16Op> all();
};

}  // namespace graphopt

namespace graphopt::gpu {

// `half`: float16, else float. `aligned`: all pointers are multiples of 16. They throw std::invalid_argument.

// Inputs X, W, b, R if any; output Y.
Plan linear_plan(const LinearProblem& p, bool half, bool aligned, const DeviceFacts& device);

// X W, for the vendor's library, and the plan of what follows it: inputs X, W, b, R if any; Y holds X W.
GemmProblem linear_product(const LinearProblem& p);
Plan linear_rest_plan(const LinearProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
