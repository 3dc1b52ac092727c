// The kernel of integer matrix multiplications, which op.cpp registers. IntegerConv (conv.h) derives from it.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "operators/kernel_bases.h"
#include "operators/matmul/integer_matmul/op.h"

namespace graphopt::integer_matmul {

constexpr size_t kNone = SIZE_MAX;

enum Role { kA, kB, kAScale, kBScale, kAZero, kBZero, kYScale, kYZero, kBias, kResidual, kTable, kRoles };
enum class Kind {
  kIntegers,
  kDynamic,      // A is float and is quantized first
  kIntegerBias,  // the bias is int32, like the sums
};

// The roles of an operator's inputs, in their order.
class Operands {
 public:
  constexpr Operands(std::initializer_list<Role> order, Kind kind = Kind::kIntegers) : kind_(kind) {
    for (size_t& index : index_) index = kNone;
    size_t i = 0;
    for (const Role role : order) index_[role] = i++;
  }
  // Returns the index of the input; kNone if the operator has no such input.
  constexpr size_t operator[](Role role) const { return index_[role]; }
  constexpr bool dynamic() const { return kind_ == Kind::kDynamic; }
  constexpr bool has_integer_bias() const { return kind_ == Kind::kIntegerBias; }

 private:
  size_t index_[kRoles] = {};
  Kind kind_;
};

// Returns true if a parameter has an element for each of `size` rows or columns, false if it has one for all. Throws
// Error for any other number.
bool is_many(const Call& call, size_t i, int64_t size, const char* what);

// Throws Error unless the input has one element.
void require_one(const Call& call, size_t i, const char* what);

// Returns whether B is quantized asymmetrically: a zero point may differ from 0, for uint8 from 128. `zero`: the input
// with the zero points.
bool is_asymmetric(gpu::Device& device, const Node& node, size_t zero, ElementType type);

// Integer matrix multiplication; the result is int32 or scaled.
class IntegerMatMul : public gpu::DeviceKernel {
 public:
  IntegerMatMul(const Node& node, gpu::Device& device, Operands in);

  void prepare(const Node& node) override;

 protected:
  // The right operand of an int8 GEMM and the operands of its epilogue, in the layout of the kernels.
  struct Right {
    Ref lines, columns;
    bool is_asymmetric;  // whether a zero point of B may differ from 0 (the function above)
    gpu::IntegerColumnsProblem columns_problem;
  };

  // Prepares constant inputs. `lines` describes B, whose sums are stored. The stored packed lines are `bytes`. If this
  // is empty, they are packed as `packed` describes, or as `lines` describes if `packed` is null.
  void prepare_right(const Node& node, gpu::IntegerLines lines, const gpu::IntegerLines* packed = nullptr,
                     const std::vector<uint8_t>& bytes = {});

  bool is_prepared() const { return lines_ != nullptr; }

  // Adds launches that prepare the inputs that are not constant. `scale`, `zero`: scale and zero point of A.
  Right plan_right(const Call& call, Program& program, gpu::IntegerLines lines, Ref scale, Ref zero) const;

  struct Scaled {
    Ref sums, left, right, y, bias;
  };
  void add_scales(const Call& call, Program& program, gpu::ScaleProblem& p, const Scaled& refs) const;

  ElementType type_of_y(const Call& call) const;

  Operands in_;

 private:
  struct Left {
    Ref a, scale, zero, y;
  };
  void plan(Call& call, Program& program) const override;
  void plan_on_matrix_units(const Call& call, Program& program, gpu::GemmProblem p, const Left& left) const;
  gpu::IntegerColumnsProblem describe_columns(const Call& call, const gpu::IntegerLines& lines) const;

  float alpha_;
  bool transpose_a_, transpose_b_;
  Activation act_;
  std::shared_ptr<void> lines_, columns_;  // of constant inputs; lines_: packed lines of B, then B's sums
  int64_t sums_at_ = 0;                    // offset of the sums in lines_
  bool is_asymmetric_ = true;              // Right::is_asymmetric for lines_
};

}  // namespace graphopt::integer_matmul
