// Operators of com.graphopt: names, attributes and shapes.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "operators/activation_op.h"
#include "operators/table.h"
#include "operators/tail.h"

namespace graphopt {

// These throw Error with the input's name unless `given` equals `wanted`.
void require_shape(const char* name, const Shape& given, const Shape& wanted);
void require_same_shape(const char* name, const Shape& given, const char* like, const Shape& wanted);

// An operator under one of its names. P is the problem that its kernels solve. A derived class Op also has
//   static std::vector<Op> all()   an Op for each name of the operator, without attributes
template <class P>
class Operator {
 public:
  using Problem = P;
  virtual ~Operator() = default;
  virtual std::string name() const = 0;
  virtual std::vector<Operand> inputs() const = 0;
  virtual size_t outputs() const { return 1; }
  // Returns the element types of the outputs if nodes may omit some of them. Returns an empty list if all outputs are
  // required; they then have input 0's type.
  virtual std::vector<ElementType> output_types() const { return {}; }
  // Reads the attributes. Throws Error if one is missing or invalid.
  virtual void read(const Node& node) = 0;
  // Returns the problem of a call; call `read` first. Throws Error for invalid shapes.
  virtual Problem problem(const Shapes& inputs) const = 0;
  // Returns the shape of output 0; call `problem` first.
  virtual Shape output(const Shapes& inputs) const { return inputs[0]; }
  // Returns the shape of output i, given the shape y of output 0. By default all outputs have the same shape.
  virtual Shape output_shape(const Shape& y, size_t) const { return y; }
  virtual void infer(const ShapeInference& node) const {
    for (size_t i = 0; i < outputs(); ++i) node.set_output(i, node.input(0));
  }
};

// The operators NAME[Add][act][Bf16] and NAME[Add]PRelu. Inputs: X, two inputs that depend on the operator, the
// residual R in Y's shape (with Add), and the slopes (with PRelu).
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
  // Returns the fused residual sum and activation; complete after `read`.
  const Tail& tail() const { return tail_; }
  // Index of the slopes among the inputs, if there are any.
  size_t slopes() const { return tail_.has_residual ? 4 : 3; }

 protected:
  // Throws Error if the residual's shape is not `wanted`.
  void require_residual(const Shapes& inputs, const char* like, const Shape& wanted) const {
    if (tail_.has_residual) require_same_shape("R", inputs[3], like, wanted);
  }
  // Throws Error unless there is one slope for each channel (axis 1 of y).
  void require_slopes(const Shapes& inputs, const Shape& y) const {
    if (!tail_.has_slopes) return;
    Shape per_channel(y.rank() - 1);
    for (size_t i = 0; i < per_channel.rank(); ++i) per_channel[i] = i == 0 ? y[1] : 1;
    require_shape("slope", inputs[slopes()], per_channel);
  }

  Tail tail_;
  bool
      bfloat16_;  // rounds the operands of multiplications to bfloat16; only on the CPU and only for float tensors

 private:
  const char* stem_;
};

// An operator with weights as input 1, which kernels may need in a packed layout.
template <class P>
class WeightedOperator : public TailedOperator<P> {
 public:
  using TailedOperator<P>::TailedOperator;
  // Returns the problem with the sizes known when a kernel is created. X may be unknown or have dims of -1; unknown
  // sizes become 0.
  virtual P static_problem(const std::optional<Shape>& x, const Shape& w) const = 0;
};

// Returns an Op for each combination of residual and activation. Its constructor receives the tail, then
// `more`.
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

// Returns an Op with and without a residual, for each activation and for PRelu.
template <class Op>
std::vector<Op> with_tails_and_slopes() {
  std::vector<Op> ops = with_tails<Op>({false, true}, all_activations());
  for (const bool residual : {false, true}) ops.emplace_back(Tail{{}, residual, true});
  return ops;
}

}  // namespace graphopt
