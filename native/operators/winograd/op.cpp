#include "operators/winograd/op.h"

namespace graphopt {

using abi::Dim;
using abi::SymbolicShape;

std::vector<WinogradConvOp> WinogradConvOp::all() {
  std::vector<WinogradConvOp> ops;
  for (bool add : {false, true}) {
    for (ActivationKind kind : all_activations()) {
      WinogradConvOp op;
      op.add_ = add;
      op.act_.kind = kind;
      ops.push_back(op);
    }
  }
  return ops;
}

std::string WinogradConvOp::name() const {
  return std::string("WinogradConv") + (add_ ? "Add" : "") + activation_suffix(act_.kind);
}

std::vector<Operand> WinogradConvOp::inputs() const {
  return std::vector<Operand>(add_ ? 4 : 3, Operand::kTensor);
}

void WinogradConvOp::read(const Node& node) {
  act_ = read_activation(act_.kind, node);
  pads_ = node.get_ints("pads");
  bool valid = pads_.size() == 4;
  for (int64_t pad : pads_) valid = valid && pad >= 0;
  if (!valid) throw Error("attribute 'pads' must be [top, left, bottom, right], all >= 0");
}

ConvProblem WinogradConvOp::static_problem(const Shape* x, const Shape& w) const {
  if (w.rank() != 4 || w[2] != 3 || w[3] != 3) throw Error("W must be [M,C,3,3], got " + w.text());
  ConvProblem p;
  p.M = w[0];
  p.C = w[1];
  if (x != nullptr) {
    if (x->rank() != 4) throw Error("X must be [N,C,H,W], got " + x->text());
    p.N = std::max<int64_t>((*x)[0], 0);
    p.H = std::max<int64_t>((*x)[2], 0);
    p.W = std::max<int64_t>((*x)[3], 0);
  }
  p.pad_top = pads_[0];
  p.pad_left = pads_[1];
  p.pad_bottom = pads_[2];
  p.pad_right = pads_[3];
  p.has_residual = add_;
  p.act = act_;
  return p;
}

ConvProblem WinogradConvOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  const Shape& w = inputs[1];
  const ConvProblem p = static_problem(&x, w);
  if (x[1] != p.C) {
    throw Error("X " + x.text() + " has " + std::to_string(x[1]) + " channels, W " + w.text() + " wants " +
                std::to_string(p.C));
  }
  if (p.OH() < 0 || p.OW() < 0)
    throw Error("X " + x.text() + " with its pads is smaller than the 3x3 window");
  const Shape bias = {p.M};
  if (inputs[2] != bias) throw Error("B must be " + bias.text() + ", got " + inputs[2].text());
  const Shape y = {p.N, p.M, p.OH(), p.OW()};
  if (add_ && inputs[3] != y) throw Error("R must be like Y " + y.text() + ", got " + inputs[3].text());
  return p;
}

Shape WinogradConvOp::output(const Shapes& inputs) const {
  const ConvProblem p = static_problem(&inputs[0], inputs[1]);
  return {p.N, p.M, p.OH(), p.OW()};
}

void WinogradConvOp::infer(const abi::ShapeInference& node) const {
  const SymbolicShape x = node.input(0);
  const SymbolicShape w = node.input(1);
  const std::vector<int64_t> pads = node.get_ints("pads");
  if (x.size() != 4 || w.size() != 4 || pads.size() != 4) return;
  // The same symbol means the same size in a whole model, so a symbol made from one is as good as one.
  const auto spatial = [](const Dim& in, int64_t growth) {
    if (in.known()) return Dim{in.value + growth, ""};
    if (in.symbol.empty() || growth == 0) return in;
    return Dim{-1, "(" + in.symbol + ")" + (growth > 0 ? "+" : "") + std::to_string(growth)};
  };
  const SymbolicShape y = {x[0], w[0], spatial(x[2], pads[0] + pads[2] - 2),
                           spatial(x[3], pads[1] + pads[3] - 2)};
  node.set_output(0, y);
}

}  // namespace graphopt
