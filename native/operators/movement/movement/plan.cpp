#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "operators/movement/movement/concat_args.h"
#include "operators/movement/movement/op.h"
#include "operators/movement/movement/planes_args.h"

namespace graphopt::gpu {
namespace {

// Drops axes of size 1, and merges axes that are contiguous in both X and Y.
StridedCopy simplified(const StridedCopy& copy) {
  StridedCopy result = copy;
  std::vector<int64_t> dims;
  result.x_strides.clear();
  result.y_strides.clear();
  for (size_t d = 0; d < copy.shape.rank(); ++d) {
    const int64_t n = copy.shape[d], x = copy.x_strides[d], y = copy.y_strides[d];
    if (n == 1) continue;
    if (!dims.empty() && result.x_strides.back() == x * n && result.y_strides.back() == y * n) {
      dims.back() *= n;
      result.x_strides.back() = x;
      result.y_strides.back() = y;
    } else {
      dims.push_back(n);
      result.x_strides.push_back(x);
      result.y_strides.push_back(y);
    }
  }
  result.shape = Shape(dims.size());
  std::copy(dims.begin(), dims.end(), result.shape.data());
  return result;
}

// Plans one copy for each index along the shortest axis. The innermost axis is not considered.
Plan copies_along_shortest_axis(const StridedCopy& copy, bool aligned) {
  const int64_t* dims = copy.shape.data();
  const auto rank = copy.shape.rank();
  const auto axis = std::min_element(dims, dims + rank - 1) - dims;
  StridedCopy part = copy;
  part.shape = Shape(rank - 1);
  std::copy(dims, dims + axis, part.shape.data());
  std::copy(dims + axis + 1, dims + rank, part.shape.data() + axis);
  part.x_strides.erase(part.x_strides.begin() + axis);
  part.y_strides.erase(part.y_strides.begin() + axis);
  Plan plan;
  for (int64_t i = 0; i < dims[axis]; ++i) {
    Plan one = strided_copy_plan(part, aligned);
    std::move(one.launches.begin(), one.launches.end(), std::back_inserter(plan.launches));
    part.x_offset += copy.x_strides[static_cast<size_t>(axis)];
    part.y_offset += copy.y_strides[static_cast<size_t>(axis)];
  }
  return plan;
}

enum { kX, kY };  // indices of the tensors of a Walk

// `elements`: elements per work-item.
void launch_copy(Plan& plan, const Walk& walk, const char* kernel, int64_t x_offset, int64_t y_offset,
                 int64_t elements) {
  hip::StridedCopyArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = walk.total();
  args.axes = walk.axes();
  args.x_strides = walk.strides(kX);
  args.y_strides = walk.strides(kY);
  args.x_offset = to_u31(x_offset);
  args.y_offset = to_u31(y_offset);
  plan.launch_items(kernel, divide_up(args.total, elements), hip::kCopyThreads, args);
}

}  // namespace

Plan strided_copy_plan(const StridedCopy& given, bool aligned) {
  Plan plan;
  if (given.shape.elements() == 0) return plan;
  const StridedCopy copy = simplified(given);
  if (copy.shape.rank() > kMaxAxes) return copies_along_shortest_axis(copy, aligned);
  Walk walk(copy.shape, {copy.x_strides, copy.y_strides});
  walk.simplify();
  const int64_t pack = 16 / copy.bytes;
  const auto is_pack_aligned = [&](int64_t offset) { return aligned && offset % pack == 0; };
  if (is_pack_aligned(copy.x_offset) && is_pack_aligned(copy.y_offset) &&
      walk.is_vectorizable(kX, pack, false) && walk.is_vectorizable(kY, pack, false)) {
    walk.widen(pack);
    launch_copy(plan, walk, "strided_copy_b128", copy.x_offset / pack, copy.y_offset / pack,
                hip::kCopyElements);
  } else if (is_pack_aligned(copy.y_offset) && walk.has_contiguous_vectors(kY, pack)) {
    Walk reordered = walk;
    reordered.improve_locality(kX);
    if (reordered.has_contiguous_vectors(kY, pack)) walk = reordered;
    const char* name = bits_kernel("strided_copy_to_packs", copy.bytes);
    launch_copy(plan, walk, name, copy.x_offset, copy.y_offset, pack);
  } else {
    const char* name = bits_kernel("strided_copy", copy.bytes);
    launch_copy(plan, walk, name, copy.x_offset, copy.y_offset, hip::kCopyElements);
  }
  return plan;
}

Plan transpose_planes_plan(int64_t batch, int64_t rows, int64_t columns, int64_t bytes, bool aligned) {
  if (batch * rows * columns == 0) return {};
  struct Tile {
    const char* kernels;
    int64_t rows, columns;
  };
  const Tile tile =
      rows <= hip::kPlanesNarrow      ? Tile{"transpose_planes_8x512", hip::kPlanesNarrow, hip::kPlanesWide}
      : columns <= hip::kPlanesNarrow ? Tile{"transpose_planes_512x8", hip::kPlanesWide, hip::kPlanesNarrow}
                                      : Tile{"transpose_planes_64x64", hip::kPlanesTile, hip::kPlanesTile};
  const int64_t across = divide_up(columns, tile.columns), tiles = across * divide_up(rows, tile.rows);
  hip::TransposeArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.rows = to_i31(rows);
  args.columns = to_i31(columns);
  args.across = make_divisor(across);
  args.tiles = make_divisor(tiles);
  args.packs_of_x = aligned && columns * bytes % 16 == 0;
  args.packs_of_y = aligned && rows * bytes % 16 == 0;
  return one_launch(bits_kernel(tile.kernels, bytes), Grid{to_u31(batch * tiles)}, hip::kPlanesThreads, args);
}

int64_t ConcatProblem::vector(bool aligned) const {
  int64_t result = std::gcd(aligned ? 16 : bytes, std::gcd(pitch, first) * bytes);
  for (const int64_t width : widths) result = std::gcd(result, width * bytes);
  return result;
}

Plan concat_plan(const ConcatProblem& p, bool aligned) {
  if (p.widths.size() > hip::kConcatInputs) throw std::invalid_argument("too many inputs for a launch");
  const int64_t vector = p.vector(aligned), elements = vector / p.bytes;
  to_u31(p.rows * p.pitch / elements);
  hip::ConcatArgs args = {};
  hip::In* const slots[] = {&args.x0, &args.x1, &args.x2, &args.x3, &args.x4, &args.x5, &args.x6, &args.x7};
  static_assert(std::size(slots) == hip::kConcatInputs);
  uint32_t width = 0;
  for (size_t i = 0; i < hip::kConcatInputs; ++i) {
    args.begins[i] = width;
    if (i >= p.widths.size()) continue;
    *slots[i] = input(static_cast<uint8_t>(i));
    width += to_u31(p.widths[i] / elements);
  }
  if (p.rows * width == 0) return {};
  args.begins[hip::kConcatInputs] = width;
  args.y = output(0);
  args.total = to_u31(p.rows * width);
  args.pitch = to_u31(p.pitch / elements);
  args.first = to_u31(p.first / elements);
  args.width = make_divisor(width);
  return one_launch(vector == 16 ? "concat_b128" : bits_kernel("concat", vector),
                    divide_up(args.total, hip::kConcatVectors), hip::kConcatThreads, args);
}

Shape PadProblem::y() const {
  Shape y = x;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (std::min(before[d], after[d]) < -INT32_MAX || std::max(before[d], after[d]) > INT32_MAX) {
      throw std::invalid_argument("a pad is out of range");
    }
    y[d] += before[d] + after[d];
    if (y[d] < 0) {
      throw std::invalid_argument("the pads remove more elements than axis " + std::to_string(d) + " has");
    }
  }
  return y;
}

namespace {

// An axis of a Pad. out: its size in y. in: the size of the part of x that is not cropped. before: the position of this
// part in y. stride: the stride of x.
struct PadAxis {
  int64_t out, in, before, stride;
  // Merges the next axis, which must be neither padded nor cropped.
  void merge(const PadAxis& next) {
    out *= next.out;
    in *= next.in;
    before *= next.out;
    stride = next.stride;
  }
};

}  // namespace

Plan pad_plan(const PadProblem& p, bool aligned) {
  const Shape y = p.y();
  if (y.elements() == 0) return {};
  const std::vector<int64_t> strides = contiguous(p.x);
  std::vector<PadAxis> axes;
  int64_t offset = 0;
  for (size_t d = 0; d < y.rank(); ++d) {
    const int64_t before = p.before[d], after = p.after[d], cut = std::max<int64_t>(-before, 0),
                  left = p.x[d] - cut - std::max<int64_t>(-after, 0);
    if (left <= 0 && p.mode != PadMode::kConstant)
      throw std::invalid_argument("an empty axis can only be padded with a constant");
    // A reflection can repeat all elements of the axis but the one at the edge. With larger pads the kernel
    // would read outside of x.
    if (p.mode == PadMode::kReflect && std::max(before, after) >= left) {
      throw std::invalid_argument("pads of a reflection must be smaller than the axis");
    }
    offset += left > 0 ? cut * strides[d] : 0;
    const PadAxis axis = {y[d], std::max<int64_t>(left, 0), left > 0 ? std::max<int64_t>(before, 0) : before,
                          strides[d]};
    const bool is_unchanged = axis.out == axis.in && p.x[d] == axis.in;
    if (!axes.empty() && is_unchanged &&
        (p.mode == PadMode::kConstant || axes.back().out == axes.back().in)) {
      axes.back().merge(axis);
    } else {
      axes.push_back(axis);
    }
  }
  if (axes.empty()) axes.push_back({1, 1, 0, 1});
  if (axes.size() > kMaxAxes) throw std::invalid_argument("Pad has more than 5 axes that cannot be merged");
  to_u31(p.x.elements());
  Shape out(axes.size());
  std::vector<int64_t> steps(axes.size());
  hip::PadArgs args = {};
  args.rank = static_cast<int32_t>(axes.size());
  for (size_t d = 0; d < axes.size(); ++d) {
    const size_t k = axes.size() - 1 - d;
    out[d] = axes[d].out;
    steps[d] = axes[d].stride;
    args.before.d[k] = static_cast<int32_t>(axes[d].before);
    args.x_dims.d[k] = to_i31(axes[d].in);
  }
  const Walk walk(out, {steps});
  const uint32_t total = walk.total();
  args.x = input(0);
  args.y = output(0);
  args.total = total;
  args.x_offset = to_u31(offset);
  args.axes = walk.axes();
  args.x_strides = walk.strides(0);
  args.value = p.value;
  args.mode = p.mode;
  const int64_t pack = 16 / p.bytes;
  args.uses_packs = aligned && axes.back().out >= pack;
  return one_launch(bits_kernel("pad", p.bytes), divide_up(total, pack), hip::kCopyThreads, args);
}

}  // namespace graphopt::gpu
