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

// The product of A and B as of numpy's matmul, of tensors whose last two axes lie turned where it says so, and the shape
// of the result. Throws Error.
struct MatmulShapes {
  gpu::GemmProblem problem;
  Shape y;
};
MatmulShapes matmul_of(const Shape& a, const Shape& b, bool transpose_a, bool transpose_b);

}  // namespace graphopt
