// Reductions on a GPU.
#pragma once

#include <vector>

#include "device/launch.h"
#include "operators/reduction/args.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

enum class Reduction : int32_t {
  kSum,
  kMax,
  kMin,
  kMean,
  kProduct,
  kL1,
  kL2,
  kSumSquare,
  kLogSum,
  kLogSumExp
};

// Over the axes of x that are `reduced`. Of float, float16 and whole numbers of 32 and 64 bits, of 8 bits and bool
// only Max and Min; not LogSumExp of whole numbers, whose Mean, L2 and LogSum are rounded towards 0.
// What is between two steps is float, also of float16.
struct ReduceProblem {
  Shape x;
  std::vector<bool> reduced;
  Reduction how = Reduction::kSum;
  ElementType type = ElementType::kFloat;
};

// `aligned`: x is a multiple of 16. Throws std::invalid_argument.
Plan reduce_plan(const ReduceProblem& p, bool aligned);

}  // namespace graphopt::gpu
