// FusedLayerNorm2d: normalization over the channels (axis 1) of each pixel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "device/launch.h"
#include "operators/operator.h"

namespace graphopt {

// X and Y [N, C, pixels].
struct LayerNorm2dProblem {
  int64_t N = 0, C = 0, pixels = 0;
  float epsilon = 1e-6f;
};

class LayerNorm2dOp final : public Operator<LayerNorm2dProblem> {
 public:
  static std::vector<LayerNorm2dOp> all() { return {LayerNorm2dOp()}; }
  std::string name() const override { return "FusedLayerNorm2d"; }
  std::vector<Operand> inputs() const override { return std::vector<Operand>(3, Operand::kTensor); }
  void read(const Node& node) override { epsilon_ = node.get_float("epsilon"); }
  Problem problem(const Shapes& inputs) const override;
  LayerNorm2dProblem problem(const Shape& x, const Shape& gamma, const Shape& beta) const;

 private:
  float epsilon_ = 0.0f;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. gamma and beta are [C]. y may be x.
GRAPHOPT_CPU_KERNEL(size_t, layer_norm_2d_workspace, (const LayerNorm2dProblem& p, size_t workers),
                    (p, workers))
GRAPHOPT_CPU_KERNEL(void, layer_norm_2d,
                    (const LayerNorm2dProblem& p, const T* x, const T* gamma, const T* beta, T* y,
                     Parallel& parallel, void* workspace),
                    (p, x, gamma, beta, y, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs X, gamma, beta; output Y. Throws std::invalid_argument if N, C or the pixels of an image are 2^31 or
// more. `aligned`: all pointers are multiples of 16.
Plan layer_norm_2d_plan(const LayerNorm2dProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
