// FusedGroupNorm[act].
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

struct GroupNormProblem {
  int64_t N = 0, C = 0, inner = 0;  // inner: product of the spatial dims
  int64_t groups = 1;
  float epsilon = 1e-5f;
  Activation act;
};

class GroupNormOp {
 public:
  using Problem = GroupNormProblem;
  static std::vector<GroupNormOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  Shape output(const Shapes& inputs) const { return inputs[0]; }
  void infer(const ShapeInference& node) const;

 private:
  Activation act_;
  int64_t groups_ = 0;
  float epsilon_ = 0.0f;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. gamma and beta are [C]. y may be x.
GRAPHOPT_CPU_KERNEL(size_t, group_norm_workspace, (const GroupNormProblem& p, size_t lanes), (p, lanes))
GRAPHOPT_CPU_KERNEL(void, group_norm,
                    (const GroupNormProblem& p, const T* x, const T* gamma, const T* beta, T* y,
                     Parallel& parallel, void* workspace),
                    (p, x, gamma, beta, y, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs X, gamma, beta; output Y. `aligned`: all pointers are multiples of 16. Throws std::invalid_argument
// when a group has 2^31 elements or more.
Plan group_norm_plan(const GroupNormProblem& p, bool half, bool aligned, const DeviceFacts& device);

}  // namespace graphopt::gpu
