#include "operators/linear/op.h"

namespace graphopt {

using abi::SymbolicShape;

std::vector<LinearOp> LinearOp::all() {
  using A = ActivationKind;
  std::vector<LinearOp> ops;
  for (const A kind : {A::kNone, A::kRelu, A::kSilu, A::kGelu, A::kGeluTanh, A::kMish}) {
    LinearOp op;
    op.act_.kind = kind;
    ops.push_back(op);
  }
  LinearOp sum;
  sum.add_ = true;
  ops.push_back(sum);
  return ops;
}

std::string LinearOp::name() const {
  return std::string("Linear") + (add_ ? "Add" : "") + activation_suffix(act_.kind);
}

std::vector<Operand> LinearOp::inputs() const { return std::vector<Operand>(add_ ? 4 : 3, Operand::kTensor); }

void LinearOp::read(const Node& node) { act_ = read_activation(act_.kind, node); }

LinearProblem LinearOp::problem(const Shapes& inputs) const {
  const Shape &x = inputs[0], &w = inputs[1];
  if (x.rank() < 1) throw Error("X must have rank 1 or more");
  if (w.rank() != 2) throw Error("W must be a matrix, got " + w.text());
  LinearProblem p;
  p.K = x[x.rank() - 1];
  p.N = w[1];
  if (w[0] != p.K) throw Error("X " + x.text() + " and W " + w.text() + " do not fit");
  const Shape bias = {p.N};
  if (inputs[2] != bias) throw Error("b must be " + bias.text() + ", got " + inputs[2].text());
  const Shape y = output(inputs);
  if (add_ && inputs[3] != y) throw Error("R must be like Y " + y.text() + ", got " + inputs[3].text());
  p.rows = 1;
  for (size_t i = 0; i + 1 < x.rank(); ++i) p.rows *= x[i];
  p.has_residual = add_;
  p.act = act_;
  return p;
}

Shape LinearOp::output(const Shapes& inputs) const {
  Shape y = inputs[0];
  y[y.rank() - 1] = inputs[1][1];
  return y;
}

void LinearOp::infer(const abi::ShapeInference& node) const {
  SymbolicShape y = node.input(0);
  const SymbolicShape w = node.input(1);
  if (y.empty() || w.size() != 2) return;
  y.back() = w[1];
  node.set_output(0, y);
}

}  // namespace graphopt
