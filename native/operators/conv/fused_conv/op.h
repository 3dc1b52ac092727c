// FusedConv[Add][act][Bf16]: Y = act(conv(X, W) + B + R), a convolution over one to three axes with its epilogue.
// FusedConv[Add]PRelu: Y = PRelu(conv(X, W) + B + R) with a slope for each channel of Y. FusedConvNchw2c[Add][act]Bf16:
// the same over two axes, from X in NCHW or NCHW2c bf16 to NCHW2c bf16 and, optionally, to Y in NCHW.
// FusedConvFromNchw2c[Add][act]Bf16: from NCHW2c bf16 to Y in NCHW. DynamicQuantizedConv[act]: the convolution of X,
// quantized to 8 bits as by DynamicQuantizeLinear, and 8-bit W. CPU only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "operators/conv/convolution/problem.h"
#include "operators/operator.h"

namespace graphopt {

// The tensors in the NCHW2c layout. kBoth: the second output, and possibly X. kX: X.
enum class Nchw2cTensors { kNone, kBoth, kX };

// The base of FusedConv and FusedConvTranspose: a window over one to three axes.
class WindowedOperator : public WeightedOperator<ConvolutionProblem> {
 public:
  using WeightedOperator::WeightedOperator;
  void read(const Node& node) override;
  Problem static_problem(const std::optional<Shape>& x, const Shape& w) const final;
  Shape output(const Shapes& inputs) const final;

 protected:
  // Returns the problem without N, `in` and `out`.
  Problem window_problem(const Shape& w) const;
  // Sets C and M.
  virtual void set_channels(Problem& p, const Shape& w) const = 0;
  // Sets N, `in` and `out` from the shape of X; unknown dimensions are negative. May throw Error if sizes are too
  // large.
  virtual void set_sizes(Problem& p, const Shape& x) const = 0;
  // Returns the NCHW shape of X.
  virtual Shape nchw_shape(const Shape& x) const { return x; }

  std::vector<int64_t> pads_, strides_, dilations_;
  int64_t group_ = 1;
};

class FusedConvOp : public WindowedOperator {
 public:
  explicit FusedConvOp(Tail tail, bool bfloat16 = false, Nchw2cTensors nchw2c = Nchw2cTensors::kNone)
      : WindowedOperator(nchw2c == Nchw2cTensors::kNone   ? "FusedConv"
                         : nchw2c == Nchw2cTensors::kBoth ? "FusedConvNchw2c"
                                                          : "FusedConvFromNchw2c",
                         tail, bfloat16),
        nchw2c_(nchw2c) {}
  static std::vector<FusedConvOp> all();
  static std::vector<FusedConvOp> all_bfloat16();
  static std::vector<FusedConvOp> all_nchw2c(Nchw2cTensors nchw2c);
  std::vector<Operand> inputs() const override;
  size_t outputs() const override { return nchw2c_ == Nchw2cTensors::kBoth ? 2 : 1; }
  std::vector<ElementType> output_types() const override;
  Shape output_shape(const Shape& y, size_t i) const override;
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;
  bool uses_nchw2c() const { return nchw2c_ != Nchw2cTensors::kNone; }

 protected:
  FusedConvOp(const char* stem, Tail tail)
      : WindowedOperator(stem, tail, false), nchw2c_(Nchw2cTensors::kNone) {}

 private:
  void set_channels(Problem& p, const Shape& w) const override;
  void set_sizes(Problem& p, const Shape& x) const override;
  Shape nchw_shape(const Shape& x) const override;

  Nchw2cTensors nchw2c_;
};

// Inputs: X float, W uint8 and B float as in FusedConv; w_scale float [M], and w_zero_point uint8 with one element.
class DynamicQuantizedConvOp final : public FusedConvOp {
 public:
  explicit DynamicQuantizedConvOp(Tail tail) : FusedConvOp("DynamicQuantizedConv", tail) {}
  static std::vector<DynamicQuantizedConvOp> all();
  std::vector<Operand> inputs() const override;
  Problem problem(const Shapes& inputs) const override;
  // Returns the problem with the sizes known when a kernel is created (static_problem), for quantized X.
  Problem quantized_problem(const std::optional<Shape>& x, const Shape& w) const;
};

class Kernels;
void add_dynamic_quantized_conv(Kernels& kernels);

}  // namespace graphopt
