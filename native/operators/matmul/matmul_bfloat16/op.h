// MatMulBf16: Y = alpha A B, whose factors are rounded to bfloat16. On the CPU alone.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "operators/operator.h"

namespace graphopt {

// Y [batch.., M, N] of A [.., M, K] and B [.., K, N], the perms of the node being folded into distances, in elements.
struct MatMulBfloat16Problem {
  int64_t M = 0, K = 0, N = 0;
  Shape batch;
  std::vector<int64_t> a_batch, b_batch;  // from matrix to matrix along each axis of it; 0 where broadcast
  int64_t a_row = 0;                      // from row to row of A, which has one element behind another
  bool b_transposed = false;              // B has those of a column behind one another, else those of a row
  int64_t b_next = 0;                     // from row to row of B, or from column to column
  float alpha = 1.0f;
};

class MatMulBfloat16Op final : public Operator<MatMulBfloat16Problem> {
 public:
  static std::vector<MatMulBfloat16Op> all() { return {MatMulBfloat16Op()}; }
  std::string name() const override { return "MatMulBf16"; }
  std::vector<Operand> inputs() const override { return {Operand::kTensor, Operand::kTensor}; }
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  float alpha_ = 1.0f;
  std::vector<int64_t> a_perm_, b_perm_;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float. The result does not depend on the number of lanes.
GRAPHOPT_PRODUCT_KERNEL(size_t, matmul_bfloat16_workspace, (const MatMulBfloat16Problem& p, size_t lanes),
                        (p, lanes))
GRAPHOPT_PRODUCT_KERNEL(void, matmul_bfloat16,
                        (const MatMulBfloat16Problem& p, const T* a, const T* b, T* y, Parallel& parallel,
                         void* workspace),
                        (p, a, b, y, parallel, workspace))

}  // namespace graphopt::cpu
