// MatMulBf16: Y = alpha A B with A and B rounded to bfloat16. CPU only.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "operators/operator.h"

namespace graphopt {

// A [.., M, K], B [.., K, N], Y [batch.., M, N] after the permutations a_perm and b_perm. All strides are in elements.
struct MatMulBfloat16Problem {
  int64_t M = 0, K = 0, N = 0;
  Shape batch;
  std::vector<int64_t> a_batch, b_batch;  // strides along the batch axes; 0 for a broadcast axis
  int64_t a_row = 0;                      // stride of the rows of A; the elements of a row are contiguous
  bool b_transposed = false;  // the elements of a column of B are contiguous; otherwise those of a row
  int64_t b_next = 0;         // stride of the rows of B, or of the columns if transposed
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

// T is float. The result does not depend on the number of threads.
GRAPHOPT_BFLOAT16_KERNEL(size_t, matmul_bfloat16_workspace, (const MatMulBfloat16Problem& p, size_t workers),
                         (p, workers))
GRAPHOPT_BFLOAT16_KERNEL(void, matmul_bfloat16,
                         (const MatMulBfloat16Problem& p, const T* a, const T* b, T* y, Parallel& parallel,
                          void* workspace),
                         (p, a, b, y, parallel, workspace))

}  // namespace graphopt::cpu
