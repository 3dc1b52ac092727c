// Walks over tensors of any rank, for the kernels that use blocks/gpu/walk.h.
#pragma once

#include "device/launch.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

using hip::Axes;
using hip::Strides;
constexpr size_t kMostAxes = hip::kMostAxes;

// A walk over all elements of a shape with one stride per axis for each of several tensors, in elements.
class Walk {
 public:
  Walk(const Shape& shape, std::vector<std::vector<int64_t>> strides);

  // Merges axes that all tensors walk as one and drops those of size 1. Throws std::invalid_argument when
  // more than kMostAxes are left, or an offset needs more than 31 bits.
  void simplify();

  // Counts in vectors of `pack` elements along the innermost axis; every tensor must be in_vectors without
  // broadcasts.
  void widen(int64_t pack);

  // All elements in runs of equal steps: where each run begins in each tensor, and its steps. The last axis
  // is the run.
  struct Rows {
    int64_t length = 1;
    std::vector<int64_t> steps;                // of each tensor
    std::vector<std::vector<int64_t>> starts;  // of each run, for each tensor
  };
  Rows rows() const;

  uint32_t total() const;
  Axes axes() const;
  Strides strides(size_t tensor) const;
  // Whether the tensor can be read or written in vectors of `pack` elements along the innermost axis, which
  // it walks with stride 1, or, if `broadcast` allows it, 0.
  bool in_vectors(size_t tensor, int64_t pack, bool broadcast) const;
  // Whether every pack-th element of the walk begins a vector of the tensor, which holds those behind it.
  bool fills_vectors(size_t tensor, int64_t pack) const;
  // Goes along the axis in which the tensor's elements lie closest right after the innermost one, if that is in
  // steps of more than one: what shares a line of memory is then asked for together.
  void keep_together(size_t tensor);

 private:
  std::vector<int64_t> dims_;                  // from the outermost
  std::vector<std::vector<int64_t>> strides_;  // of each tensor, from the outermost
};

// The strides of a contiguous tensor.
std::vector<int64_t> contiguous(const Shape& shape);
// The strides with which a contiguous tensor of shape `from` is broadcast to `to`. Throws
// std::invalid_argument.
std::vector<int64_t> broadcast(const Shape& from, const Shape& to);
// The shape that both broadcast to. Throws std::invalid_argument.
Shape broadcast_shape(const Shape& a, const Shape& b);

// Fills in the walk of Y = op(A, B), which blocks/gpu/operands.h reads, and its output. `pack`: elements of A in 16 bytes.
// B and the mask may be null; the walk's last tensor is the mask.
template <class Args>
Walk fill_operands(Args& args, const Shape& y, const Shape& a, const Shape* b, const Shape* mask,
                   int64_t pack, bool aligned) {
  enum { kY, kA, kB };
  const std::vector<int64_t> none(y.rank(), 0);
  Walk walk(y, {contiguous(y), broadcast(a, y), b != nullptr ? broadcast(*b, y) : none,
                mask != nullptr ? broadcast(*mask, y) : none});
  walk.simplify();
  args.y = output(0);
  args.vectors = aligned && walk.in_vectors(kY, pack, false) && walk.in_vectors(kA, pack, true) &&
                 walk.in_vectors(kB, pack, true);
  args.total = walk.total();
  args.axes = walk.axes();
  args.a_strides = walk.strides(kA);
  args.b_strides = walk.strides(kB);
  return walk;
}

}  // namespace graphopt::gpu
