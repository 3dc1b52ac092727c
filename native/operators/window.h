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

  // Throws Error unless what is given fits that many axes of a window of this size.
  void check(size_t axes, const std::vector<int64_t>& kernel) const;

  const std::vector<int64_t>& kernel() const { return kernel_; }  // empty when not given
  const std::string& auto_pad() const { return auto_pad_; }
  int64_t stride(size_t axis) const { return strides_.empty() ? 1 : strides_[axis]; }
  int64_t dilation(size_t axis) const { return dilations_.empty() ? 1 : dilations_[axis]; }
  // Elements that a window of `kernel` taps covers.
  int64_t span(size_t axis, int64_t kernel) const { return (kernel - 1) * dilation(axis) + 1; }

  struct Padding {
    int64_t begin = 0, end = 0;
  };
  // What `pads` says.
  Padding pads(size_t axis) const;
  // What `pads` or `auto_pad` says where the window moves over `in` elements.
  Padding padding(size_t axis, int64_t in, int64_t span) const;
  // The larger half is at the end where auto_pad is SAME_UPPER, else at the beginning.
  Padding halves(int64_t total) const;

  // Sets `pad` and `out` of p's axis d, which is axis i of the attributes. No outputs: a negative `out`.
  using Place = std::function<void(ConvolutionProblem& p, size_t d, size_t i)>;
  // Sets N and the axes of p, whose groups, C and M are set, from X and W in channels first, which have one rank, and
  // returns the shape of Y. Throws Error where they do not fit.
  Shape fit(const Shape& x, const Shape& w, ConvolutionProblem& p, const Place& place) const;
  // The Place of a convolution that is not transposed.
  void place(ConvolutionProblem& p, size_t d, size_t i) const;

 private:
  std::string auto_pad_;
  std::vector<int64_t> kernel_, strides_, dilations_, pads_;
};

// How often a pool's window lies on an axis that is larger by `room`. Division goes towards zero, as in ONNX Runtime: a
// window that overhangs by less than a stride lies on it once. Less than 0: it overhangs by two strides or more.
constexpr int64_t pool_places(int64_t room, int64_t stride) { return room / stride + 1; }

}  // namespace graphopt
