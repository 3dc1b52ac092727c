// QuantizedLinear[act]: Y = act(Q(X) W + b) with X quantized to 8 bits by DynamicQuantizeLinear and W of 8 bits. CPU
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "operators/operator.h"

namespace graphopt {

struct QuantizedLinearProblem {
  int64_t rows = 0;  // product of all dims of X except the last
  int64_t K = 0;     // last dim of X
  int64_t N = 0;     // last dim of Y
  Activation act;
};

// Inputs: X float [.., K]; W int8 or uint8 [K, N]; the scales of W, float [N]; the zero points of W, in W's type [N];
// the bias b, float [N].
class QuantizedLinearOp final : public Operator<QuantizedLinearProblem> {
 public:
  explicit QuantizedLinearOp(ActivationKind kind) { act_.kind = kind; }
  static std::vector<QuantizedLinearOp> all();
  std::string name() const override;
  std::vector<Operand> inputs() const override;
  void read(const Node& node) override { act_ = read_activation(act_.kind, node); }
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  Activation act_;
};

}  // namespace graphopt

namespace graphopt::cpu {

// W and its zero points as bytes, and whether they are signed.
struct WeightBytes {
  const uint8_t *w, *zero_points;
  bool is_signed;
};

// T is float. The result does not depend on the number of threads. Sums wrap modulo 2^32, as in MatMulInteger.
// Packed weights depend on p.K, p.N, W and its type.
GRAPHOPT_CPU_KERNEL(size_t, quantized_linear_weights, (const QuantizedLinearProblem& p), (p))
GRAPHOPT_CPU_KERNEL(void, quantized_linear_prepare,
                    (const QuantizedLinearProblem& p, const WeightBytes& bytes, void* weights),
                    (p, bytes, weights))
GRAPHOPT_CPU_KERNEL(size_t, quantized_linear_workspace, (const QuantizedLinearProblem& p, size_t workers),
                    (p, workers))
GRAPHOPT_CPU_KERNEL(void, quantized_linear,
                    (const QuantizedLinearProblem& p, const T* x, const void* weights,
                     const WeightBytes& bytes, const T* scales, const T* b, T* y, Parallel& parallel,
                     void* workspace),
                    (p, x, weights, bytes, scales, b, y, parallel, workspace))

}  // namespace graphopt::cpu
