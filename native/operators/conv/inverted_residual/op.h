// InvertedResidual[Add][act]: a pointwise, a depthwise and a pointwise convolution:
//
//   Y = conv(act(depthwise(act(conv(X, W1) + B1), W2) + B2), W3) + B3 + R
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "operators/operator.h"

namespace graphopt {

// x [N, C, in..], y and the residual [N, O, out..], with M channels between the convolutions.
struct InvertedResidualProblem {
  using Axes = std::array<int64_t, 2>;
  int64_t N = 0, C = 0, M = 0, O = 0;
  Axes in = {0, 0}, out = {0, 0}, kernel = {1, 1}, stride = {1, 1};
  Axes pad = {0, 0};  // at the start; `out` implies the padding at the end
  bool has_residual = false;
  Activation act;  // after the first and the second convolution

  int64_t in_size() const { return in[0] * in[1]; }
  int64_t out_size() const { return out[0] * out[1]; }
  int64_t taps() const { return kernel[0] * kernel[1]; }
};

// The inputs after X: W1 [M, C, 1, 1], B1 [M], W2 [M, 1, kernel..], B2 [M], W3 [O, M, 1, 1], B3 [O] and, for
// InvertedResidualAdd, R.
class InvertedResidualOp final : public TailedOperator<InvertedResidualProblem> {
 public:
  static constexpr size_t kWeights = 6, kResidual = 7;
  explicit InvertedResidualOp(Tail tail) : TailedOperator("InvertedResidual", tail) {}
  static std::vector<InvertedResidualOp> all();
  std::vector<Operand> inputs() const override;
  void read(const Node& node) override;
  // Returns the problem without N, `in` and `out` for the shapes of W1, B1, ..., B3. Throws Error if they do not match.
  Problem of_weights(const std::vector<Shape>& weights) const;
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  std::vector<int64_t> pads_, strides_;
  int64_t group_ = 1;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float. Weights are passed in order, W1 first.
template <class T>
using InvertedResidualWeights = std::array<const T*, InvertedResidualOp::kWeights>;

// Returns the bytes of the packed weights, which depend on C, M, O and the size of the window.
GRAPHOPT_CPU_KERNEL(size_t, inverted_residual_weights, (const InvertedResidualProblem& p), (p))
// Packs the weights; the result starts at a cache line.
GRAPHOPT_CPU_KERNEL(void, inverted_residual_prepare,
                    (const InvertedResidualProblem& p, const InvertedResidualWeights<T>& from, void* weights),
                    (p, from, weights))
GRAPHOPT_CPU_KERNEL(size_t, inverted_residual_workspace, (const InvertedResidualProblem& p, size_t workers),
                    (p, workers))
// r is null unless p.has_residual. The result does not depend on the number of threads.
GRAPHOPT_CPU_KERNEL(void, inverted_residual,
                    (const InvertedResidualProblem& p, const T* x, const void* weights, const T* r, T* y,
                     Parallel& parallel, void* workspace),
                    (p, x, weights, r, y, parallel, workspace))

}  // namespace graphopt::cpu
