// The GEMM of two tensors, for MatMul and other operators that contain a GEMM.
#pragma once

#include <memory>

#include "operators/kernel_bases.h"
#include "operators/matmul/matmul/op.h"

namespace graphopt {

// A GEMM Y = A B that is being planned. The plan_* functions may move the problem `p` out of it.
struct GemmCall : GpuWork<gpu::GemmProblem> {
  Ref a, b, y;
};
// Two implementations: the vendor's library, and the built-in kernel (plan_built_in_gemm).
const char* refuse_gemm_by_library(GemmCall& gemm);
void plan_gemm_by_library(GemmCall& gemm);
void load_blas(gpu::Device& device, const gpu::LibraryChoices* libraries);
void plan_built_in_gemm(GemmCall& gemm);

// Chooses the implementation for the GEMMs of a node.
class GemmChoice {
 public:
  explicit GemmChoice(const Node& node) : choice_(std::make_shared<Choice>(node)) {}
  static Implementations implementations();
  void plan(GemmCall gemm) const;

 private:
  std::shared_ptr<const Choice> choice_;
};

}  // namespace graphopt
