// Fused<act>: Y = act(X), for activations that models write out in several nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "device/launch.h"
#include "operators/operator.h"

namespace graphopt {

struct ActivationProblem {
  Shape shape;
  Activation act;
};

class ActivationOp final : public Operator<ActivationProblem> {
 public:
  static std::vector<ActivationOp> all();
  std::string name() const override { return std::string("Fused") + activation_suffix(act_.kind); }
  std::vector<Operand> inputs() const override { return {Operand::kTensor}; }
  void read(const Node& node) override { act_ = read_activation(act_.kind, node); }
  ActivationKind kind() const { return act_.kind; }
  Problem problem(const Shapes& inputs) const override { return {inputs[0], act_}; }

 private:
  Activation act_;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. y may be x.
GRAPHOPT_CPU_KERNEL(void, activation, (const ActivationProblem& p, const T* x, T* y, Parallel& parallel),
                    (p, x, y, parallel))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Input X, output Y. `aligned`: both pointers are multiples of 16. Throws std::invalid_argument if X has 2^31 elements
// or more.
Plan activation_plan(const ActivationProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
