// The device-independent half of the operators: for each op a class that reads a node's attributes, turns its
// input shapes into a kernel's Problem (or throws Error with the reason), and infers its output shapes.
//
// Every class has
//   static std::vector<Op> all()                  one for each name, attributes not read yet
//   std::string name() const
//   std::vector<Operand> inputs() const
//   size_t outputs() const
//   void read(const Node&)                        throws Error
//   Problem problem(const Shapes& inputs) const   throws Error; the attributes must have been read
//   Shape output(const Shapes& inputs) const      all outputs of an op have the same shape
//   void infer(const abi::ShapeInference&) const
#pragma once

#include <string>
#include <vector>

#include "operators/table.h"
#include "ops/activation_op.h"
#include "ops/fused_attention.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/scale_shift.h"
#include "ops/winograd_conv.h"

namespace graphopt {

class ScaleShiftOp {
 public:
  using Problem = ScaleShiftProblem;
  static std::vector<ScaleShiftOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  Shape output(const Shapes& inputs) const { return inputs[0]; }
  void infer(const abi::ShapeInference& node) const;

 private:
  bool add_ = false;
  Activation act_;
};

class WinogradConvOp {
 public:
  using Problem = ConvProblem;
  static std::vector<WinogradConvOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  // What is known when a kernel is created: x may be null or have dims of -1, which become 0 in the problem.
  Problem static_problem(const Shape* x, const Shape& w) const;
  Shape output(const Shapes& inputs) const;
  void infer(const abi::ShapeInference& node) const;

 private:
  bool add_ = false;
  Activation act_;
  std::vector<int64_t> pads_;
};

class FusedAttentionOp {
 public:
  using Problem = AttentionProblem;
  static std::vector<FusedAttentionOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  Shape output(const Shapes& inputs) const;
  void infer(const abi::ShapeInference& node) const;

  bool has_bias() const { return bias_; }
  bool has_mask() const { return mask_; }

 private:
  struct Resolved;
  Resolved resolve(const Shapes& inputs) const;

  bool bias_ = false, mask_ = false, causal_ = false, gqa_ = false, guard_ = false, softcap_ = false;
  float scale_ = 1.0f, softcap_value_ = 0.0f, mask_value_ = 0.0f;
  std::vector<int64_t> q_perm_, k_perm_, v_perm_, o_perm_;
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

// FusedLayerNorm and FusedRmsNorm.
class RowNormOp {
 public:
  using Problem = RowNormProblem;
  static std::vector<RowNormOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return sum_ ? 2 : 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  Shape output(const Shapes& inputs) const { return inputs[0]; }
  void infer(const abi::ShapeInference& node) const;

  bool rms() const { return rms_; }
  bool add() const { return add_; }

 private:
  bool rms_ = false, add_ = false, sum_ = false;
  float epsilon_ = 0.0f;
};

// The only ones without a CPU kernel: on the CPU the body runs, which is what the runtime's own fusions know.
class LinearOp {
 public:
  using Problem = LinearProblem;
  static std::vector<LinearOp> all();
  std::string name() const;
  std::vector<Operand> inputs() const;
  size_t outputs() const { return 1; }
  void read(const Node& node);
  Problem problem(const Shapes& inputs) const;
  Shape output(const Shapes& inputs) const;
  void infer(const abi::ShapeInference& node) const;

 private:
  bool add_ = false;
  Activation act_;
};

}  // namespace graphopt
