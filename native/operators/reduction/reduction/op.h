// Reductions on a GPU.
#pragma once

#include <vector>

#include "device/launch.h"
#include "operators/kernel.h"
#include "operators/reduction/reduction/args.h"

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

// Reduces the axes of x that are `reduced`. Types: float, float16, integers of 32 and 64 bits, and for Max and Min also
// integers of 8 bits and bool. Integers have no LogSumExp; their Mean, L2 and LogSum round towards 0. Intermediate
// results for float and float16 are float.
struct ReduceProblem {
  Shape x;
  std::vector<bool> reduced;
  Reduction reduction = Reduction::kSum;
  ElementType type = ElementType::kFloat;
};

// `aligned`: the address of x is a multiple of 16 bytes. Throws std::invalid_argument if a size is too large.
Plan reduce_plan(const ReduceProblem& p, bool aligned);

}  // namespace graphopt::gpu

namespace graphopt {

// The axes of input 0 that a node reduces, from input 1 (in host memory) or an attribute. Without either, all axes
// are reduced, or none if noop_with_empty_axes is set.
class ReducedAxes {
 public:
  explicit ReducedAxes(const Attributes& node);
  // Returns for each axis whether it is reduced. Throws Error for an invalid axis.
  std::vector<bool> reduced(const Call& call) const;
  Shape output_shape(const Shape& x, const std::vector<bool>& reduced) const;

 private:
  std::vector<int64_t> axes_;
  bool keepdims_, empty_is_all_;
};

}  // namespace graphopt
