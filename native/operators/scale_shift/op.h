// ScaleShift[Add][act]: Y = act(X * scale + shift + R), scale and shift per channel (axis 1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/cpu/isa.h"
#include "device/cpu/parallel.h"
#include "device/launch.h"
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
  void infer(const ShapeInference& node) const;

 private:
  bool add_ = false;
  Activation act_;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. scale and shift are [C]. y may be x or residual.
GRAPHOPT_CPU_KERNEL(size_t, scale_shift_workspace, (const ScaleShiftProblem& p), (p))
GRAPHOPT_CPU_KERNEL(void, scale_shift,
                    (const ScaleShiftProblem& p, const T* x, const T* scale, const T* shift,
                     const T* residual, T* y, Parallel& parallel, void* workspace),
                    (p, x, scale, shift, residual, y, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs X, scale, shift, R if any; output Y. `half`: float16, else float. `aligned`: all pointers are
// multiples of 16. Throws std::invalid_argument when a plane has 2^31 elements or more.
Plan scale_shift_plan(const ScaleShiftProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
