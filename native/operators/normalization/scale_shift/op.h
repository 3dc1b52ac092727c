// ScaleShift[Add][act]: Y = act(X * scale + shift + R), scale and shift per channel (axis 1); and
// BatchNormalization.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "device/launch.h"
#include "operators/operator.h"

namespace graphopt {

struct ScaleShiftProblem {
  int64_t N = 0;      // dim 0
  int64_t C = 0;      // dim 1
  int64_t inner = 0;  // product of the other dims (1 for rank 2)
  bool has_residual = false;
  Activation act;
};

class ScaleShiftOp final : public TailedOperator<ScaleShiftProblem> {
 public:
  explicit ScaleShiftOp(Tail tail) : TailedOperator("ScaleShift", tail) {}
  static std::vector<ScaleShiftOp> all();
  Problem problem(const Shapes& inputs) const override;
  ScaleShiftProblem problem(const Shape& x, const Shape& scale, const Shape& shift) const;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. scale and shift are [C]. y may be x or residual.
GRAPHOPT_CPU_KERNEL(size_t, scale_shift_workspace, (const ScaleShiftProblem& p, size_t workers), (p, workers))
GRAPHOPT_CPU_KERNEL(void, scale_shift,
                    (const ScaleShiftProblem& p, const T* x, const T* scale, const T* shift,
                     const T* residual, T* y, Parallel& parallel, void* workspace),
                    (p, x, scale, shift, residual, y, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs X, scale, shift, R if any; output Y. `half`: float16, else float. `aligned`: all pointers are
// multiples of 16. Throws std::invalid_argument if a plane has 2^31 elements or more.
Plan scale_shift_plan(const ScaleShiftProblem& p, bool half, bool aligned);

// Y = PRelu(X + shift + R) of inputs X, slopes (one for each channel), shift, R if any.
Plan shift_prelu_plan(const ScaleShiftProblem& p, bool half, bool aligned);

// BatchNormalization of inputs X, scale, shift, mean, variance, where the last four are float, or float16 if
// `half_parameters`.
Plan batch_norm_plan(const ScaleShiftProblem& p, float epsilon, bool half, bool half_parameters,
                     bool aligned);

}  // namespace graphopt::gpu
