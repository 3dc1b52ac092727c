// FusedLayerNorm[Add[Sum]], FusedRmsNorm[Add[Sum]].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "operators/table.h"

namespace graphopt {

// LayerNorm subtracts the mean and adds beta; RMSNorm does neither (beta is null).
struct RowNormProblem {
  int64_t rows = 0, D = 0;
  float epsilon = 1e-5f;
  bool rms = false;
  bool has_residual = false;
  bool writes_sum = false;  // S = X + R is a second output
};

// FusedLayerNorm and FusedRmsNorm.
class RowNormOp {
 public:
  using Problem = RowNormProblem;
  static std::vector<RowNormOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return sum_ ? 2 : 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  Shape output(const Shapes& inputs) const { return inputs[0]; }
  void infer(const abi::ShapeInference& node) const;

  bool rms() const { return rms_; }
  bool add() const { return add_; }

 private:
  bool rms_ = false, add_ = false, sum_ = false;
  float epsilon_ = 0.0f;
};

}  // namespace graphopt
