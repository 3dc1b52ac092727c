// An operator of our own domain: what its name, its attributes and the shapes of its inputs say.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "operators/activation_op.h"
#include "operators/table.h"
#include "operators/tail.h"

namespace graphopt {

// They throw Error, with the input's name.
void require_shape(const char* name, const Shape& given, const Shape& wanted);
void require_like(const char* name, const Shape& given, const char* like, const Shape& wanted);

// One of its names. P is what its kernels take. A folder has one class Op for all names of its operator, with
//   static std::vector<Op> all()   one for each name, attributes not read yet
template <class P>
class Operator {
 public:
  using Problem = P;
  virtual ~Operator() = default;
  virtual std::string name() const = 0;
  virtual std::vector<Operand> inputs() const = 0;
  virtual size_t outputs() const { return 1; }
  // The types of outputs that nodes may leave out; empty: all outputs have input 0's type and must be there.
  virtual std::vector<ElementType> output_types() const { return {}; }
  // Throws Error.
  virtual void read(const Node& node) = 0;
  // Residual sum and activation, once `read` has been called. Throws Error.
  virtual Problem problem(const Shapes& inputs) const = 0;
  // The shape of every output, or of the first one; called once there is a problem.
  virtual Shape output(const Shapes& inputs) const { return inputs[0]; }
  // The shape of output i, given that of the first output, y.
  virtual Shape output_beside(const Shape& y, size_t) const { return y; }
  virtual void infer(const ShapeInference& node) const {
    for (size_t i = 0; i < outputs(); ++i) node.set_output(i, node.input(0));
  }
};

// NAME[Add][act][Bf16]: inputs X, two more and, where it says Add, a residual like Y; NAME[Add]PRelu: slopes behind them.
template <class P>
class TailedOperator : public Operator<P> {
 public:
  TailedOperator(const char* stem, Tail tail, bool bfloat16 = false)
      : tail_(tail), bfloat16_(bfloat16), stem_(stem) {}

  std::string name() const final {
    return std::string(stem_) + (tail_.has_residual ? "Add" : "") +
           (tail_.has_slopes ? "PRelu" : activation_suffix(tail_.act.kind)) + (bfloat16_ ? "Bf16" : "");
  }
  std::vector<Operand> inputs() const override {
    return std::vector<Operand>(slopes() + (tail_.has_slopes ? 1 : 0), Operand::kTensor);
  }
  void read(const Node& node) override { tail_.act = read_activation(tail_.act.kind, node); }
  // Residual sum and activation, once `read` has been called.
  const Tail& tail() const { return tail_; }
  // The input that they are, where there are any.
  size_t slopes() const { return tail_.has_residual ? 4 : 3; }

 protected:
  // Throws Error.
  void require_residual(const Shapes& inputs, const char* like, const Shape& wanted) const {
    if (tail_.has_residual) require_like("R", inputs[3], like, wanted);
  }
  // One for each channel, along axis 1 of y.
  void require_slopes(const Shapes& inputs, const Shape& y) const {
    if (!tail_.has_slopes) return;
    Shape per_channel(y.rank() - 1);
    for (size_t i = 0; i < per_channel.rank(); ++i) per_channel[i] = i == 0 ? y[1] : 1;
    require_shape("slope", inputs[slopes()], per_channel);
  }

  Tail tail_;
  bool bfloat16_;  // factors are rounded to it: on the CPU alone, and for float

 private:
  const char* stem_;
};

// Its input 1 are weights, which kernels may want in a layout of their own.
template <class P>
class WeightedOperator : public TailedOperator<P> {
 public:
  using TailedOperator<P>::TailedOperator;
  // What is known when a kernel is created. X may be nothing, or have dims of -1; what is not known becomes
  // 0.
  virtual P static_problem(const std::optional<Shape>& x, const Shape& w) const = 0;
};

// An Op for each name; `more` follows the tail.
template <class Op, class... Args>
std::vector<Op> with_tails(std::initializer_list<bool> residuals, const std::vector<ActivationKind>& kinds,
                           Args... more) {
  std::vector<Op> ops;
  for (const bool residual : residuals) {
    for (const ActivationKind kind : kinds) {
      Tail tail;
      tail.act.kind = kind;
      tail.has_residual = residual;
      ops.emplace_back(tail, more...);
    }
  }
  return ops;
}

// With and without a residual, for each activation and for PRelu.
template <class Op>
std::vector<Op> with_tails_and_slopes() {
  std::vector<Op> ops = with_tails<Op>({false, true}, all_activations());
  for (const bool residual : {false, true}) ops.emplace_back(Tail{{}, residual, true});
  return ops;
}

}  // namespace graphopt
