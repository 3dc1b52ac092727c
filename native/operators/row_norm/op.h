// FusedLayerNorm[Add[Sum]], FusedRmsNorm[Add[Sum]].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/cpu/isa.h"
#include "device/cpu/parallel.h"
#include "device/launch.h"
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
  void infer(const ShapeInference& node) const;

  bool rms() const { return rms_; }
  bool add() const { return add_; }

 private:
  bool rms_ = false, add_ = false, sum_ = false;
  float epsilon_ = 0.0f;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. residual is null unless p.has_residual, beta unless p is a LayerNorm, sum
// unless p.writes_sum. y may be x.
GRAPHOPT_CPU_KERNEL(size_t, row_norm_workspace, (const RowNormProblem& p, size_t lanes), (p, lanes))
GRAPHOPT_CPU_KERNEL(void, row_norm,
                    (const RowNormProblem& p, const T* x, const T* residual, const T* gamma, const T* beta,
                     T* y, T* sum, Parallel& parallel, void* workspace),
                    (p, x, residual, gamma, beta, y, sum, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs X, R if any, gamma, beta unless p.rms; outputs Y, S if any. `aligned`: all pointers are multiples
// of 16. Throws std::invalid_argument when D or the number of rows is 2^31 or more.
Plan row_norm_plan(const RowNormProblem& p, bool half, bool aligned, const DeviceFacts& device);

}  // namespace graphopt::gpu
