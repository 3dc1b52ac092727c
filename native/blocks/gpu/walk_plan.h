// Iteration over tensors of any rank, for kernels that use blocks/gpu/walk.h.
#pragma once

#include "device/launch.h"
#include "operators/tensor.h"

namespace graphopt::gpu {

using hip::Axes;
using hip::Strides;
constexpr size_t kMaxAxes = hip::kMaxAxes;

// A walk is a loop nest over all elements of a shape. Each of its tensors has one stride for each axis, in
// elements.
class Walk {
 public:
  Walk(const Shape& shape, std::vector<std::vector<int64_t>> strides);

  // Merges two neighbouring axes if one stride covers both in every tensor, and drops axes of size 1. Throws
  // std::invalid_argument if more than kMaxAxes remain or an offset needs more than 31 bits.
  void simplify();

  // Changes the unit from elements to vectors of `pack` elements along the innermost axis. Requires
  // is_vectorizable without broadcasts for every tensor.
  void widen(int64_t pack);

  // The walk divided into runs: the innermost loops.
  struct Rows {
    int64_t length = 1;                        // elements of a run
    std::vector<int64_t> steps;                // stride of each tensor along a run
    std::vector<std::vector<int64_t>> starts;  // [run][tensor], offset in elements
  };
  Rows rows() const;

  uint32_t total() const;
  Axes axes() const;
  Strides strides(size_t tensor) const;
  // Whether the tensor can be read or written in vectors of `pack` elements along the innermost axis. Its stride along
  // this axis must be 1; with `broadcast`, it may also be 0.
  bool is_vectorizable(size_t tensor, int64_t pack, bool broadcast) const;
  // Whether each group of `pack` consecutive elements of the walk is an aligned vector of the tensor.
  bool has_contiguous_vectors(size_t tensor, int64_t pack) const;
  // If the tensor's innermost stride is not its smallest, moves the axis with the smallest stride next to the
  // innermost axis. Accesses to the same cache line are then closer in time.
  void improve_locality(size_t tensor);

 private:
  std::vector<int64_t> dims_;                  // from the outermost
  std::vector<std::vector<int64_t>> strides_;  // of each tensor, from the outermost
};

// Returns the strides of a contiguous tensor.
std::vector<int64_t> contiguous(const Shape& shape);
// Returns the strides that broadcast a contiguous tensor of shape `from` to shape `to`. Throws
// std::invalid_argument if the shapes do not broadcast.
std::vector<int64_t> broadcast(const Shape& from, const Shape& to);
// Returns the common shape of both after broadcasting. Throws std::invalid_argument if there is none.
Shape broadcast_shape(const Shape& a, const Shape& b);

// Fills in the output, the axes and the strides of Y = op(A, B) for blocks/gpu/operands.h. `pack`: number of
// elements of A in 16 bytes. B and the mask may be null. The mask is the last tensor of the returned walk.
template <class Args>
Walk fill_operands(Args& args, const Shape& y, const Shape& a, const Shape* b, const Shape* mask,
                   int64_t pack, bool aligned) {
  enum { kY, kA, kB };
  const std::vector<int64_t> none(y.rank(), 0);
  Walk walk(y, {contiguous(y), broadcast(a, y), b != nullptr ? broadcast(*b, y) : none,
                mask != nullptr ? broadcast(*mask, y) : none});
  walk.simplify();
  args.y = output(0);
  args.vectors = aligned && walk.is_vectorizable(kY, pack, false) && walk.is_vectorizable(kA, pack, true) &&
                 walk.is_vectorizable(kB, pack, true);
  args.total = walk.total();
  args.axes = walk.axes();
  args.a_strides = walk.strides(kA);
  args.b_strides = walk.strides(kB);
  return walk;
}

}  // namespace graphopt::gpu
