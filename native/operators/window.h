// The attributes that Conv, ConvTranspose and the pools share, for one to three spatial axes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "operators/conv/convolution/problem.h"
#include "operators/kernel.h"

namespace graphopt {

class Window {
 public:
  explicit Window(const Attributes& a);

  // Throws Error unless the attributes are valid for this number of axes and this kernel shape.
  void check(size_t axes, const std::vector<int64_t>& kernel) const;

  const std::vector<int64_t>& kernel() const { return kernel_; }  // empty when not given
  const std::string& auto_pad() const { return auto_pad_; }
  int64_t stride(size_t axis) const { return strides_.empty() ? 1 : strides_[axis]; }
  int64_t dilation(size_t axis) const { return dilations_.empty() ? 1 : dilations_[axis]; }
  // Returns the number of elements that a window of `kernel` taps covers.
  int64_t span(size_t axis, int64_t kernel) const { return (kernel - 1) * dilation(axis) + 1; }

  struct Padding {
    int64_t begin = 0, end = 0;
  };
  // Returns the padding that the attribute `pads` sets.
  Padding pads(size_t axis) const;
  // Returns the padding from `pads` or `auto_pad` for a window over `in` elements.
  Padding padding(size_t axis, int64_t in, int64_t span) const;
  // Splits the padding. The larger half is at the end if auto_pad is SAME_UPPER, else at the start.
  Padding halves(int64_t total) const;

  // Sets `pad` and `out` of p's axis d, which is axis i of the attributes. A negative `out` means that the
  // kernel is larger than the padded input.
  using SetAxis = std::function<void(ConvolutionProblem& p, size_t d, size_t i)>;
  // Sets N and the axes of p from the shapes of X and W, which are in channels first and have the same rank. p's
  // groups, C and M must be set. Returns the shape of Y. Throws Error if the shapes do not fit.
  Shape fit(const Shape& x, const Shape& w, ConvolutionProblem& p, const SetAxis& set_axis) const;
  // The SetAxis function of a convolution that is not transposed.
  void set_convolution_axis(ConvolutionProblem& p, size_t d, size_t i) const;

 private:
  std::string auto_pad_;
  std::vector<int64_t> kernel_, strides_, dilations_, pads_;
};

// Returns the number of positions of a pool's window on an axis that is `slack` elements longer than the window. The
// division rounds toward zero, as in ONNX Runtime: a window that is longer than the axis by less than a stride has
// one position. A negative result means that the window is longer than the axis by two strides or more.
constexpr int64_t pool_positions(int64_t slack, int64_t stride) { return slack / stride + 1; }

}  // namespace graphopt
