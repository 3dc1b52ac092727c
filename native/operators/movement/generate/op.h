// Range, ConstantOfShape, Trilu and OneHot on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/movement/generate/args.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

using hip::IndexType;

// Floats use `start` and `step`, integers use `integer_start` and `integer_step`.
struct RangeProblem {
  ElementType type = ElementType::kFloat;
  int64_t total = 0;
  float start = 0, step = 1;
  int64_t integer_start = 0, integer_step = 1;
};
// Output y. The plans of this file throw std::invalid_argument if y has 2^31 elements or more.
Plan range_plan(const RangeProblem& p);

// `total` copies of an element of `bytes` bytes, stored in the lower bytes of `bits`.
struct FillProblem {
  int64_t total = 0, bytes = 4;
  uint64_t bits = 0;
};
// Output y. `aligned`: the address of y is a multiple of 16.
Plan fill_plan(const FillProblem& p, bool aligned);

struct TriluProblem {
  int64_t batch = 1, rows = 1, columns = 1;
  int64_t k = 0;
  bool upper = true;
  int64_t bytes = 4;
};
// Input x, output y. `aligned`: both pointers are multiples of 16.
Plan trilu_plan(const TriluProblem& p, bool aligned);

struct OneHotProblem {
  int64_t outer = 1, depth = 1, inner = 1;
  IndexType type = IndexType::kInt64;
  int64_t bytes = 4;  // per value
};
// Inputs indices, values; output y. `aligned`: all pointers are multiples of 16.
Plan one_hot_plan(const OneHotProblem& p, bool aligned);

}  // namespace graphopt::gpu
