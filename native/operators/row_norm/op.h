// FusedLayerNorm[Add[Sum]], FusedAdaLayerNorm[Add[Sum]], FusedRmsNorm[Add[Sum]].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/cpu/isa.h"
#include "device/cpu/parallel.h"
#include "device/launch.h"
#include "operators/operator.h"

namespace graphopt {

// LayerNorm subtracts the mean and adds beta; RMSNorm does neither (beta is null).
struct RowNormProblem {
  int64_t rows = 0, D = 0;
  float epsilon = 1e-5f;
  bool rms = false;
  bool has_residual = false;
  bool writes_sum = false;         // S = X + R is a second output
  bool has_beta = true;            // of a LayerNorm on a GPU
  int64_t images = 1;              // gamma and beta are [images, D]: one row for every rows / images of X
  bool writes_statistics = false;  // of each row, on a GPU
};

// FusedLayerNorm, FusedRmsNorm and FusedAdaLayerNorm, which can have a gamma and a beta for each image.
class RowNormOp final : public Operator<RowNormProblem> {
 public:
  static std::vector<RowNormOp> all();
  std::string name() const override;
  std::vector<Operand> inputs() const override;
  size_t outputs() const override { return sum_ ? 2 : 1; }
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;

 private:
  bool rms_ = false, ada_ = false, add_ = false, sum_ = false;
  float epsilon_ = 0.0f;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. gamma and beta are [images, D]. residual is null unless p.has_residual, beta if
// p.rms, sum unless p.writes_sum. y may be x.
GRAPHOPT_CPU_KERNEL(size_t, row_norm_workspace, (const RowNormProblem& p, size_t lanes), (p, lanes))
GRAPHOPT_CPU_KERNEL(void, row_norm,
                    (const RowNormProblem& p, const T* x, const T* residual, const T* gamma, const T* beta,
                     T* y, T* sum, Parallel& parallel, void* workspace),
                    (p, x, residual, gamma, beta, y, sum, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs X, R if any, gamma, beta unless p.rms; outputs Y, S if any, and where p.writes_statistics, in float, the
// means of all rows and behind them 1 / sqrt(variance + epsilon) of all rows. `aligned`: all pointers are multiples
// of 16. Throws std::invalid_argument when D or the number of rows is 2^31 or more.
Plan row_norm_plan(const RowNormProblem& p, bool half, bool aligned, const DeviceFacts& device);

}  // namespace graphopt::gpu
