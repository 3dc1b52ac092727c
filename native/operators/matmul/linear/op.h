// Linear[Add][act]: Y = act(X W + b + R), a fully connected layer over the last axis.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/launch.h"
#include "operators/matmul/linear/problem.h"
#include "operators/matmul/matmul/op.h"
#include "operators/operator.h"

namespace graphopt {

// The bfloat16 operators are CPU only.
class LinearOp final : public WeightedOperator<LinearProblem> {
 public:
  explicit LinearOp(Tail tail, bool bfloat16 = false) : WeightedOperator("Linear", tail, bfloat16) {}
  static std::vector<LinearOp> all();
  static std::vector<LinearOp> all_bfloat16();
  Problem problem(const Shapes& inputs) const override;
  Problem static_problem(const std::optional<Shape>& x, const Shape& w) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;
  // Sets whether the kernels may use Strassen's algorithm. Without it, the rounding of a row does not depend on other
  // rows.
  LinearOp& use_strassen(bool use) {
    strassen_ = use;
    return *this;
  }

 private:
  bool strassen_ = true;
};

// Replaces Linear's CPU kernels by kernels without Strassen's algorithm.
void disable_strassen(Table& table);

}  // namespace graphopt

namespace graphopt::gpu {

// `half`: float16, else float. `aligned`: all pointers are multiples of 16. The plans throw std::invalid_argument if a
// size is too large.

// Inputs X, W, b, R if any; output Y.
Plan linear_plan(const LinearProblem& p, bool half, bool aligned, const DeviceFacts& device);

// linear_gemm returns the GEMM X W for the vendor's library. linear_epilogue_plan plans the epilogue after it: inputs
// X, W, b, R if any; output Y, which already holds X W.
GemmProblem linear_gemm(const LinearProblem& p);
Plan linear_epilogue_plan(const LinearProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
