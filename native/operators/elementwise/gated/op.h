// Gated<act>: Y = act(A) * B; GatedHalves<act>: the same for the halves of one tensor's last axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "device/launch.h"
#include "operators/operator.h"

namespace graphopt {

// Y [rows, D]. For GatedHalves X is [rows, 2 D], and A is its half with index `gate`.
struct GatedProblem {
  int64_t rows = 0, D = 0;
  bool halves = false;
  int64_t gate = 0;
  Activation act;
};

class GatedOp final : public Operator<GatedProblem> {
 public:
  static std::vector<GatedOp> all();
  std::string name() const override;
  std::vector<Operand> inputs() const override {
    return std::vector<Operand>(halves_ ? 1 : 2, Operand::kTensor);
  }
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  bool halves_ = false;
  int64_t gate_ = 0;
  Activation act_;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. b is null for GatedHalves. For Gated, y may be a or b.
GRAPHOPT_CPU_KERNEL(void, gated, (const GatedProblem& p, const T* a, const T* b, T* y, Parallel& parallel),
                    (p, a, b, y, parallel))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs A and B, or only X for GatedHalves; output Y. `aligned`: all pointers are multiples of 16. Throws
// std::invalid_argument if a row of X has 2^31 elements or more.
Plan gated_plan(const GatedProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
