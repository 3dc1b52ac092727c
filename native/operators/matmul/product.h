// A product of two tensors, for MatMul and other operators that begin with one.
#pragma once

#include "operators/kernel_bases.h"
#include "operators/matmul/op.h"

namespace graphopt {

// A product that is being planned, Y = A B. Planning moves the problem out.
struct Product {
  gpu::GemmProblem problem;
  bool half;
  const Call& call;
  Program& program;
  gpu::Device& device;
  Ref a, b, y;
};
// Parts of two implementations: by the vendor's library, and by a kernel of our own (plan_own).
const char* refuse_library(Product& product);
void plan_library(Product& product);
void load_blas(gpu::Device& device, const gpu::LibraryChoices* libraries);
void plan_own(Product& product);

}  // namespace graphopt
