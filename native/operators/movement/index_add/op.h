// IndexAdd: adds slices along an axis, selected by indices. CPU only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "operators/operator.h"

namespace graphopt {

// `updates` has no size above that of `data`, except along `axis`. There its size is the number of indices, or
// there is one index, which applies to all slices.
struct IndexAddProblem {
  Shape data, updates;
  size_t axis = 0;
  bool one_index = false;
};

// Inputs: data; int32 or int64 indices of rank 1; updates.
class IndexAddOp final : public Operator<IndexAddProblem> {
 public:
  static std::vector<IndexAddOp> all() { return {IndexAddOp()}; }
  std::string name() const override { return "IndexAdd"; }
  std::vector<Operand> inputs() const override { return {Operand::kTensor, Operand::kAny, Operand::kTensor}; }
  void read(const Node& node) override { axis_ = node.get_int("axis"); }
  Problem problem(const Shapes& inputs) const override;

 private:
  int64_t axis_ = 0;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float. y may be `data`. Every element of y adds its updates in the order of the indices, whatever the number of
// threads. Indices are int32 if `narrow`, else int64, and in [-n, n) for n elements of data along the axis.
GRAPHOPT_CPU_KERNEL(void, index_add,
                    (const IndexAddProblem& p, const T* data, const void* indices, bool narrow,
                     const T* updates, T* y, Parallel& parallel),
                    (p, data, indices, narrow, updates, y, parallel))

}  // namespace graphopt::cpu
