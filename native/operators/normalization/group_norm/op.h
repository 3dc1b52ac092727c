// FusedGroupNorm[act].
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "device/launch.h"
#include "operators/operator.h"

namespace graphopt {

struct GroupNormProblem {
  int64_t N = 0, C = 0, inner = 0;  // inner: product of the spatial dims
  int64_t groups = 1;
  float epsilon = 1e-5f;
  Activation act;
  bool channels_last = false;  // X and Y are in channels last; only on a GPU in float16
};

class GroupNormOp final : public TailedOperator<GroupNormProblem> {
 public:
  explicit GroupNormOp(Tail tail) : TailedOperator("FusedGroupNorm", tail) {}
  static std::vector<GroupNormOp> all();
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Problem problem(const Shape& x, const Shape& gamma, const Shape& beta) const;

 private:
  int64_t groups_ = 0;
  float epsilon_ = 0.0f;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. gamma and beta are [C]. y may be x.
GRAPHOPT_CPU_KERNEL(size_t, group_norm_workspace, (const GroupNormProblem& p, size_t workers), (p, workers))
GRAPHOPT_CPU_KERNEL(void, group_norm,
                    (const GroupNormProblem& p, const T* x, const T* gamma, const T* beta, T* y,
                     Parallel& parallel, void* workspace),
                    (p, x, gamma, beta, y, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs X, gamma, beta; output Y. `aligned`: all pointers are multiples of 16. Throws std::invalid_argument
// if a group, or an image in channels last, has 2^31 elements or more.
Plan group_norm_plan(const GroupNormProblem& p, bool half, bool aligned, const DeviceFacts& device);

}  // namespace graphopt::gpu
