#include "operators/window.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {

using Integers = std::vector<int64_t>;

Window::Window(const Attributes& a)
    : auto_pad_(a.get_string("auto_pad", "NOTSET")),
      kernel_(a.find_ints("kernel_shape").value_or(Integers())),
      strides_(a.find_ints("strides").value_or(Integers())),
      dilations_(a.find_ints("dilations").value_or(Integers())),
      pads_(a.find_ints("pads").value_or(Integers())) {}

void Window::check(size_t axes, const Integers& kernel) const {
  require_sizes(axes, kernel, 1);
  throw_if(!kernel_.empty() && kernel_ != kernel, "kernel_shape differs from the kernel of W");
  require_sizes(axes, strides_, 1);
  require_sizes(axes, dilations_, 1);
  require_sizes(2 * axes, pads_, 0);
}

Window::Padding Window::pads(size_t axis) const {
  if (pads_.empty()) return {};
  return {pads_[axis], pads_[pads_.size() / 2 + axis]};
}

Window::Padding Window::padding(size_t axis, int64_t in, int64_t span) const {
  if (auto_pad_ == "NOTSET") return pads(axis);
  if (auto_pad_ == "VALID") return {};
  const int64_t out = (in + stride(axis) - 1) / stride(axis);
  return halves(std::max<int64_t>((out - 1) * stride(axis) + span - in, 0));
}

Window::Padding Window::halves(int64_t total) const {
  const int64_t less = total / 2, more = total - less;
  return auto_pad_ == "SAME_UPPER" ? Padding{less, more} : Padding{more, less};
}

Shape Window::fit(const Shape& x, const Shape& w, ConvolutionProblem& p, const SetAxis& set_axis) const {
  const size_t axes = x.rank() - 2;
  check(axes, Integers(w.data() + 2, w.data() + w.rank()));
  throw_if(p.x_channels() != x[1], "the channels of X ", x, " and W ", w, " do not fit");
  p.N = x[0];
  Shape y = x;
  y[1] = p.y_channels();
  for (size_t i = 0; i < axes; ++i) {
    const size_t d = kSpatialAxes - axes + i;
    p.in[d] = x[2 + i];
    p.kernel[d] = w[2 + i];
    p.stride[d] = stride(i);
    p.dilation[d] = dilation(i);
    set_axis(p, d, i);
    throw_if(p.out[d] < 0, "the kernel is larger than the padded input");
    y[2 + i] = p.out[d];
  }
  return y;
}

void Window::set_convolution_axis(ConvolutionProblem& p, size_t d, size_t i) const {
  const Padding around = padding(i, p.in[d], p.span(d));
  p.pad[d] = around.begin;
  p.out[d] = p.out_of(d, around.end);
}

}  // namespace graphopt
