// FusedGroupNorm[act].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "operators/activation_op.h"
#include "operators/table.h"

namespace graphopt {

struct GroupNormProblem {
  int64_t N = 0, C = 0, inner = 0;  // inner: product of the spatial dims
  int64_t groups = 1;
  float epsilon = 1e-5f;
  Activation act;
};

class GroupNormOp {
 public:
  using Problem = GroupNormProblem;
  static std::vector<GroupNormOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  Shape output(const Shapes& inputs) const { return inputs[0]; }
  void infer(const abi::ShapeInference& node) const;

 private:
  Activation act_;
  int64_t groups_ = 0;
  float epsilon_ = 0.0f;
};

}  // namespace graphopt
