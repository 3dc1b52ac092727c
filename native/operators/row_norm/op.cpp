#include "operators/row_norm/op.h"

namespace graphopt {

std::vector<RowNormOp> RowNormOp::all() {
  std::vector<RowNormOp> ops;
  for (bool rms : {false, true}) {
    for (int suffixes : {0, 1, 2}) {
      RowNormOp op;
      op.rms_ = rms;
      op.add_ = suffixes >= 1;
      op.sum_ = suffixes == 2;
      ops.push_back(op);
    }
  }
  return ops;
}

std::string RowNormOp::name() const {
  return std::string(rms_ ? "FusedRmsNorm" : "FusedLayerNorm") + (add_ ? "Add" : "") + (sum_ ? "Sum" : "");
}

std::vector<Operand> RowNormOp::inputs() const {
  return std::vector<Operand>(2 + (add_ ? 1 : 0) + (rms_ ? 0 : 1), Operand::kTensor);
}

void RowNormOp::read(const Node& node) { epsilon_ = node.get_float("epsilon"); }

RowNormProblem RowNormOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  if (x.rank() < 1) throw Error("X must have rank 1 or more");
  if (add_ && inputs[1] != x) throw Error("R must be like X " + x.text() + ", got " + inputs[1].text());
  const Shape row = {x[x.rank() - 1]};
  const size_t gamma = add_ ? 2 : 1, beta = gamma + 1;
  if (inputs[gamma] != row) throw Error("gamma must be " + row.text() + ", got " + inputs[gamma].text());
  if (!rms_ && inputs[beta] != row)
    throw Error("beta must be " + row.text() + ", got " + inputs[beta].text());
  RowNormProblem p;
  p.D = row[0];
  p.rows = 1;
  for (size_t i = 0; i + 1 < x.rank(); ++i) p.rows *= x[i];
  p.epsilon = epsilon_;
  p.rms = rms_;
  p.has_residual = add_;
  p.writes_sum = sum_;
  return p;
}

void RowNormOp::infer(const abi::ShapeInference& node) const {
  for (size_t i = 0; i < outputs(); ++i) node.set_output(i, node.input(0));
}

}  // namespace graphopt
