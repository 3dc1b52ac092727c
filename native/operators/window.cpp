#include "operators/window.h"

#include <algorithm>

#include "operators/room.h"

namespace graphopt {

using Integers = std::vector<int64_t>;

Window::Window(const Attributes& a)
    : auto_pad_(a.find_string("auto_pad").value_or("NOTSET")),
      kernel_(a.find_ints("kernel_shape").value_or(Integers())),
      strides_(a.find_ints("strides").value_or(Integers())),
      dilations_(a.find_ints("dilations").value_or(Integers())),
      pads_(a.find_ints("pads").value_or(Integers())) {}

void Window::check(size_t axes, const Integers& kernel) const {
  require_sizes(axes, kernel, 1);
  if (!kernel_.empty() && kernel_ != kernel) throw Error("kernel_shape is not that of W");
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

}  // namespace graphopt
