#include "ops/schema.h"

namespace graphopt {

using abi::Error;
using abi::Operand;
using abi::Shape;

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

void RowNormOp::read(const abi::Attributes& attributes) { epsilon_ = attributes.get_float("epsilon"); }

RowNormProblem RowNormOp::problem(const Shape* inputs) const {
  const Shape& x = inputs[0];
  if (x.rank() < 1) throw Error("X must have rank 1 or more");
  if (add_ && inputs[1] != x) throw Error("R must be like X " + x.text() + ", got " + inputs[1].text());
  const Shape row = {x[x.rank() - 1]};
  const Shape* gamma = inputs + (add_ ? 2 : 1);
  if (gamma[0] != row) throw Error("gamma must be " + row.text() + ", got " + gamma[0].text());
  if (!rms_ && gamma[1] != row) throw Error("beta must be " + row.text() + ", got " + gamma[1].text());
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
