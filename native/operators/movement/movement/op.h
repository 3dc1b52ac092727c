// Strided copies, matrix transposes, Concat and Pad on a GPU (kernel.hip, planes.hip, concat.hip).
#pragma once

#include "blocks/gpu/walk_plan.h"
#include "device/program.h"
#include "operators/kernel.h"
#include "operators/movement/movement/args.h"

namespace graphopt::gpu {

// A copy between two strided tensors x and y. Strides and offsets are in elements of `bytes` (1, 2, 4 or 8)
// bytes.
struct StridedCopy {
  Shape shape;
  std::vector<int64_t> x_strides, y_strides;
  int64_t x_offset = 0, y_offset = 0;
  int64_t bytes = 4;
};

// Returns the copy from x with these strides to a contiguous y.
StridedCopy copy_to(const Shape& y, std::vector<int64_t> x_strides, int64_t bytes);
// Returns the copy that permutes the axes of x by perm.
StridedCopy permutation(const Shape& x, const std::vector<size_t>& perm, int64_t bytes);

// Input x, output y. `aligned`: both pointers are multiples of 16. More than kMaxAxes axes that do not
// merge need several launches. Throws std::invalid_argument if a stride, an offset or the number of elements is 2^31 or
// more.
Plan strided_copy_plan(const StridedCopy& copy, bool aligned);

// y [batch, columns, rows] = x [batch, rows, columns] of elements of 2 or 4 bytes. Input x, output y. `aligned`:
// both pointers are multiples of 16. Throws std::invalid_argument if a size is 2^31 or more.
Plan transpose_planes_plan(int64_t batch, int64_t rows, int64_t columns, int64_t bytes, bool aligned);

// Copies at most kConcatInputs inputs to Y. Each of the `rows` rows of Y has `pitch` elements. From element `first` on,
// it receives the corresponding rows of the inputs, one after another.
struct ConcatProblem {
  int64_t rows = 1, pitch = 0, first = 0;
  std::vector<int64_t> widths;  // elements of a row of each input
  int64_t bytes = 4;            // of an element: 1, 2, 4 or 8
  // Returns the bytes of the largest vectors, at most 16, that all rows consist of.
  int64_t vector(bool aligned) const;
};

// The copies in one launch. Inputs: the tensors; output y. `aligned`: all pointers are multiples of 16. Throws
// std::invalid_argument if there are too many inputs, or if a size is 2^31 or more.
Plan concat_plan(const ConcatProblem& p, bool aligned);

using hip::PadMode;

struct PadProblem {
  Shape x;
  std::vector<int64_t> before, after;  // for each axis; negative values crop x before it is padded
  PadMode mode = PadMode::kConstant;
  uint64_t value = 0;  // the bits of an element
  int64_t bytes = 4;   // 1, 2, 4 or 8
  // Throws std::invalid_argument if the pads crop more elements than an axis has.
  Shape y() const;
};

// Input x, output y. `aligned`: both pointers are multiples of 16. Throws std::invalid_argument if the pads are invalid
// for the mode, if more than kMaxAxes axes do not merge, or if a size is 2^31 or more.
Plan pad_plan(const PadProblem& p, bool aligned);

}  // namespace graphopt::gpu

namespace graphopt {

// Returns the copy of input 0 that Slice makes; starts, ends, axes and steps are inputs 1 to 4, in host
// memory. Throws Error if they are invalid.
gpu::StridedCopy sliced(const Call& call);

// Returns the copy of input 0 that Expand makes; the shape is input 1, in host memory. Throws an exception if input 0
// does not broadcast to it.
gpu::StridedCopy expanded(const Call& call);

// Returns the copy of input 0 that Transpose makes; if `perm` is empty, the axes are reversed. Throws Error if `perm`
// is not a permutation of the axes.
gpu::StridedCopy transposed(const Call& call, const std::vector<int64_t>& perm);

// Plans a copy of input 0 to an output. If the copied elements are adjacent in input 0, the caller may store the output
// in input 0 (Program::parts). Then nothing is copied.
void plan_part(Call& call, gpu::Program& program, gpu::StridedCopy copy, size_t output);

// Returns the shape of the concatenation of inputs `first`, `first + step`, .. along `axis`. Throws Error if they do
// not match.
Shape concatenated(const Call& call, size_t first, size_t step, size_t axis);

}  // namespace graphopt
