// A product as an implementation of MatMul and of what comes to one.
#pragma once

#include "operators/matmul/op.h"
#include "operators/room.h"

namespace graphopt {

// One product on the way, Y = A B. The problem is used up.
struct Product {
  gpu::GemmProblem problem;
  bool half;
  const Call& call;
  Program& program;
  gpu::Device& device;
  Ref a, b, y;
};
// By the vendor's library, and by a kernel of our own: an implementation of its own each.
const char* refuse_library(Product& product);
void plan_library(Product& product);
void load_blas(gpu::Device& device, const gpu::LibraryChoices* libraries);
void plan_own(Product& product);

}  // namespace graphopt
