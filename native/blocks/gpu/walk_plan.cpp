#include "blocks/gpu/walk_plan.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace graphopt::gpu {

Walk::Walk(const Shape& shape, std::vector<std::vector<int64_t>> strides)
    : dims_(shape.data(), shape.data() + shape.rank()), strides_(std::move(strides)) {}

void Walk::simplify() {
  size_t axes = 0;
  for (size_t d = 0; d < dims_.size(); ++d) {
    if (dims_[d] == 1) continue;
    const auto can_merge = [&](const std::vector<int64_t>& s) { return s[axes - 1] == s[d] * dims_[d]; };
    if (axes > 0 && std::all_of(strides_.begin(), strides_.end(), can_merge)) {
      dims_[axes - 1] *= dims_[d];
      for (auto& s : strides_) s[axes - 1] = s[d];
      continue;
    }
    dims_[axes] = dims_[d];
    for (auto& s : strides_) s[axes] = s[d];
    ++axes;
  }
  dims_.resize(axes);
  for (auto& s : strides_) s.resize(axes);
  if (axes > kMaxAxes) throw std::invalid_argument("a tensor has too many axes that cannot be merged");
  for (const auto& s : strides_) {
    int64_t last = 0;
    for (size_t d = 0; d < axes; ++d) last += std::max<int64_t>(s[d] * (dims_[d] - 1), 0);
    to_u31(last);
  }
}

void Walk::widen(int64_t pack) {
  dims_.back() /= pack;
  for (auto& s : strides_) {
    for (size_t d = 0; d + 1 < s.size(); ++d) s[d] /= pack;
  }
}

Walk::Rows Walk::rows() const {
  Rows result;
  const size_t tensors = strides_.size(), last = dims_.size() - 1;
  result.steps.assign(tensors, 0);
  result.starts.assign(1, std::vector<int64_t>(tensors, 0));
  if (dims_.empty()) return result;
  result.length = dims_[last];
  for (size_t t = 0; t < tensors; ++t) result.steps[t] = strides_[t][last];
  for (size_t d = 0; d < last; ++d) {
    std::vector<std::vector<int64_t>> next;
    for (const auto& start : result.starts) {
      for (int64_t i = 0; i < dims_[d]; ++i) {
        next.push_back(start);
        for (size_t t = 0; t < tensors; ++t) next.back()[t] += i * strides_[t][d];
      }
    }
    result.starts = std::move(next);
  }
  return result;
}

uint32_t Walk::total() const {
  int64_t n = 1;
  for (const int64_t d : dims_) n *= d;
  return to_u31(n);
}

Axes Walk::axes() const {
  Axes result;
  const size_t n = dims_.size();
  for (size_t k = 0; k < kMaxAxes - 1; ++k) result.inner[k] = make_divisor(k < n ? dims_[n - 1 - k] : 1);
  return result;
}

Strides Walk::strides(size_t tensor) const {
  Strides result = {};
  const size_t n = dims_.size();
  for (size_t k = 0; k < n; ++k) result.s[k] = static_cast<int32_t>(strides_[tensor][n - 1 - k]);
  return result;
}

bool Walk::is_vectorizable(size_t tensor, int64_t pack, bool broadcast) const {
  if (dims_.empty() || dims_.back() % pack != 0) return false;
  const auto& s = strides_[tensor];
  if (s.back() == 0) return broadcast;
  return s.back() == 1 && std::all_of(s.begin(), s.end() - 1, [pack](int64_t v) { return v % pack == 0; });
}

bool Walk::has_contiguous_vectors(size_t tensor, int64_t pack) const {
  const auto& s = strides_[tensor];
  size_t outer = dims_.size();  // number of axes outside the contiguous inner ones
  int64_t run = 1;
  while (outer > 0 && s[outer - 1] == run) run *= dims_[--outer];
  const auto end = s.begin() + static_cast<ptrdiff_t>(outer);
  return outer == 0 ||
         (run % pack == 0 && std::all_of(s.begin(), end, [pack](int64_t v) { return v % pack == 0; }));
}

void Walk::improve_locality(size_t tensor) {
  const auto& s = strides_[tensor];
  if (dims_.size() < 3 || std::abs(s.back()) <= 1) return;
  const auto distance = [](int64_t stride) { return stride == 0 ? INT64_MAX : std::abs(stride); };
  const auto closest = std::min_element(s.begin(), s.end() - 1,
                                        [&](int64_t a, int64_t b) { return distance(a) < distance(b); });
  if (distance(*closest) >= std::abs(s.back())) return;
  const auto axis = closest - s.begin();
  const auto move = [axis](std::vector<int64_t>& of_axes) {
    std::rotate(of_axes.begin() + axis, of_axes.begin() + axis + 1, of_axes.end() - 1);
  };
  move(dims_);
  for (auto& of_tensor : strides_) move(of_tensor);
}

std::vector<int64_t> contiguous(const Shape& shape) {
  std::vector<int64_t> strides(shape.rank());
  int64_t stride = 1;
  for (size_t d = shape.rank(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

std::vector<int64_t> broadcast(const Shape& from, const Shape& to) {
  const auto refuse = [&] {
    throw std::invalid_argument("shape " + from.text() + " does not broadcast to " + to.text());
  };
  if (from.rank() > to.rank()) refuse();
  const std::vector<int64_t> inner = contiguous(from);
  std::vector<int64_t> strides(to.rank(), 0);
  const size_t lead = to.rank() - from.rank();
  for (size_t d = 0; d < from.rank(); ++d) {
    if (from[d] != 1 && from[d] != to[lead + d]) refuse();
    strides[lead + d] = from[d] == 1 ? 0 : inner[d];
  }
  return strides;
}

Shape broadcast_shape(const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape result = longer;
  const size_t lead = longer.rank() - shorter.rank();
  for (size_t d = 0; d < shorter.rank(); ++d) {
    const int64_t x = longer[lead + d], y = shorter[d];
    if (x != y && x != 1 && y != 1) {
      throw std::invalid_argument("shapes " + a.text() + " and " + b.text() + " do not broadcast");
    }
    result[lead + d] = x == 1 ? y : x;
  }
  return result;
}

}  // namespace graphopt::gpu
