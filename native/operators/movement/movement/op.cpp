// Operators that move elements: Transpose, Slice, Concat, Split, Expand, Tile, DepthToSpace, SpaceToDepth and
// Pad.
#include "operators/movement/movement/op.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "blocks/half.h"
#include "operators/kernel_bases.h"
#include "operators/movement/movement/concat_args.h"

namespace graphopt {
namespace gpu {

StridedCopy copy_to(const Shape& y, std::vector<int64_t> x_strides, int64_t bytes) {
  StridedCopy copy;
  copy.shape = y;
  copy.x_strides = std::move(x_strides);
  copy.y_strides = contiguous(y);
  copy.bytes = bytes;
  return copy;
}

StridedCopy permutation(const Shape& x, const std::vector<size_t>& perm, int64_t bytes) {
  const std::vector<int64_t> strides = contiguous(x);
  Shape y(perm.size());
  std::vector<int64_t> x_strides;
  for (size_t d = 0; d < perm.size(); ++d) {
    y[d] = x[perm[d]];
    x_strides.push_back(strides[perm[d]]);
  }
  return copy_to(y, std::move(x_strides), bytes);
}

}  // namespace gpu

gpu::StridedCopy sliced(const Call& call) {
  const Tensor& x = call.input(0);
  const size_t rank = x.shape.rank();
  const std::vector<int64_t> starts = call.integers(1), ends = call.integers(2);
  std::vector<int64_t> axes(starts.size()), steps(starts.size(), 1);
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  if (call.has_input(3)) axes = call.integers(3);
  if (call.has_input(4)) steps = call.integers(4);
  throw_if(ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size(),
           "starts, ends, axes and steps must have equal lengths");
  gpu::StridedCopy copy = gpu::copy_to(x.shape, gpu::contiguous(x.shape), bytes_of(x.type));
  std::vector<bool> seen(rank);
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = axis_of(axes[i], rank);
    throw_if(seen[axis], "the input axes names an axis twice");
    seen[axis] = true;
    const int64_t dim = x.shape[axis];
    throw_if(steps[i] == 0, "a step is 0");
    // A step longer than the axis selects one element, as a step of the axis' length does.
    const int64_t step = std::clamp<int64_t>(steps[i], -dim - 1, dim + 1);
    const auto clamp = [dim, step](int64_t at) {
      at = at < 0 ? std::max<int64_t>(at, -dim - 1) + dim : at;
      return step > 0 ? std::clamp<int64_t>(at, 0, dim) : std::clamp<int64_t>(at, -1, dim - 1);
    };
    const int64_t begin = clamp(starts[i]), end = clamp(ends[i]);
    const int64_t span = step > 0 ? end - begin : begin - end, stride = step > 0 ? step : -step;
    copy.shape[axis] = span > 0 ? (span - 1) / stride + 1 : 0;
    copy.x_offset += begin * copy.x_strides[axis];
    copy.x_strides[axis] *= step;
  }
  copy.y_strides = gpu::contiguous(copy.shape);
  return copy;
}

gpu::StridedCopy expanded(const Call& call) {
  const Tensor& x = call.input(0);
  const std::vector<int64_t> dims = call.integers(1);
  Shape wanted(dims.size());
  std::copy(dims.begin(), dims.end(), wanted.data());
  const Shape y = gpu::broadcast_shape(x.shape, wanted);
  return gpu::copy_to(y, gpu::broadcast(x.shape, y), bytes_of(x.type));
}

gpu::StridedCopy transposed(const Call& call, const std::vector<int64_t>& perm) {
  const Tensor& x = call.input(0);
  const size_t rank = x.shape.rank();
  throw_if(!perm.empty() && perm.size() != rank, "the length of perm differs from the rank");
  std::vector<bool> seen(rank);
  std::vector<size_t> from(rank);
  for (size_t d = 0; d < rank; ++d) {
    from[d] = perm.empty() ? rank - 1 - d : axis_of(perm[d], rank);
    throw_if(seen[from[d]], "the attribute perm names an axis twice");
    seen[from[d]] = true;
  }
  return gpu::permutation(x.shape, from, bytes_of(x.type));
}

Shape concatenated(const Call& call, size_t first, size_t step, size_t axis) {
  Shape y = call.input(first).shape;
  y[axis] = 0;
  for (size_t i = first; i < call.inputs.size(); i += step) {
    Shape x = call.input(i).shape;
    throw_if(x.rank() != y.rank(), "the inputs must have equal ranks");
    y[axis] += x[axis];
    x[axis] = y[axis];
    throw_if(!(x == y), "inputs may differ only in the size of the concatenated axis");
  }
  return y;
}

namespace {

using gpu::StridedCopy;

// Returns whether elements with these strides are adjacent.
bool is_contiguous(const Shape& shape, const std::vector<int64_t>& strides) {
  const std::vector<int64_t> wanted = gpu::contiguous(shape);
  for (size_t d = 0; d < shape.rank(); ++d) {
    if (shape[d] != 1 && strides[d] != wanted[d]) return false;
  }
  return true;
}

void strided_copy(const Call& call, Program& program, const StridedCopy& copy, size_t x, Ref y) {
  program.launch(gpu::strided_copy_plan(copy, call.aligned()), {Ref::input(x)}, {y});
}

}  // namespace

void plan_part(Call& call, Program& program, StridedCopy copy, size_t output) {
  const Ref y = set_output(call, output, copy.shape);
  const int64_t offset = copy.x_offset * copy.bytes;
  if (!is_contiguous(copy.shape, copy.x_strides) || offset % static_cast<int64_t>(gpu::kMaxAlignment) != 0) {
    strided_copy(call, program, copy, 0, y);
    return;
  }
  program.parts.resize(call.outputs.size(), -1);
  program.parts[output] = offset;
  copy.x_offset = 0;
  program.launch_unless_in_place(gpu::strided_copy_plan(copy, call.aligned()), {Ref::input(0, offset)}, {y});
}

namespace {

struct Matrices {
  int64_t batch = 1, rows = 1, columns = 1;
};

// Returns X as a batch of matrices if the copy only transposes them.
std::optional<Matrices> transposed_matrices(const StridedCopy& copy) {
  // Adjacent axes of Y that form a single axis of X with one stride.
  struct Run {
    int64_t elements, stride;
  };
  std::vector<Run> runs;
  for (size_t d = 0; d < copy.shape.rank(); ++d) {
    if (copy.shape[d] == 1) continue;
    const int64_t stride = copy.x_strides[d];
    if (!runs.empty() && runs.back().stride == stride * copy.shape[d]) {
      runs.back() = {runs.back().elements * copy.shape[d], stride};
    } else {
      runs.push_back({copy.shape[d], stride});
    }
  }
  if (runs.size() != 2 && runs.size() != 3) return std::nullopt;
  Matrices m;
  const Run &down = runs[runs.size() - 2], &across = runs.back();
  m.batch = runs.size() == 3 ? runs[0].elements : 1;
  m.rows = across.elements;
  m.columns = down.elements;
  const bool is_transposed = down.stride == 1 && across.stride == m.columns &&
                             (runs.size() == 2 || runs[0].stride == m.rows * m.columns);
  return is_transposed ? std::optional(m) : std::nullopt;
}

Planner plan_transpose(const Node& node) {
  return [perm = node.get_ints("perm", {})](Call& call, Program& program) {
    const StridedCopy copy = transposed(call, perm);
    const Ref y = set_output(call, 0, copy.shape);
    const bool fits = copy.bytes == 2 || copy.bytes == 4;
    if (const auto m = transposed_matrices(copy); m && fits && m->rows > 1 && m->columns > 1) {
      program.launch(gpu::transpose_planes_plan(m->batch, m->rows, m->columns, copy.bytes, call.aligned()),
                     {Ref::input(0)}, {y});
    } else {
      strided_copy(call, program, copy, 0, y);
    }
  };
}

// Plans the copy of input 0 that kCopy describes.
template <StridedCopy (*kCopy)(const Call&)>
void plan_moved(Call& call, Program& program) {
  plan_part(call, program, kCopy(call), 0);
}

// The repeats are input 1.
void plan_tile(Call& call, Program& program) {
  const Tensor& x = call.input(0);
  const size_t rank = x.shape.rank();
  const std::vector<int64_t> repeats = call.integers(1);
  throw_if(repeats.size() != rank, "there must be one repeat for each axis");
  Shape y = x.shape;
  std::vector<size_t> remaining;  // axes that remain to be repeated
  for (size_t d = 0; d < rank; ++d) {
    throw_if(repeats[d] < 0 || repeats[d] > INT32_MAX, "a repeat of ", repeats[d], " is out of range");
    y[d] *= repeats[d];
    if (repeats[d] != 1) remaining.push_back(d);
  }
  const Ref out = set_output(call, 0, y);
  Ref from = Ref::input(0);
  if (y.elements() == 0) return;
  if (remaining.empty()) program.copy(out, from, x.shape.elements() * bytes_of(x.type));
  // One copy repeats at most two axes. It then has at most five axes, the maximum of a copy: one axis for all axes
  // before the repeated ones, and two for each repeated axis (repeats, elements). The last axes are repeated first.
  Shape now = x.shape;
  while (!remaining.empty()) {
    std::vector<size_t> chosen(
        remaining.end() - std::min<ptrdiff_t>(2, std::distance(remaining.begin(), remaining.end())),
        remaining.end());
    remaining.resize(remaining.size() - chosen.size());
    const std::vector<int64_t> strides = gpu::contiguous(now);
    Shape shape(rank + chosen.size());
    std::vector<int64_t> x_strides;
    for (size_t d = 0; d < rank; ++d) {
      if (std::find(chosen.begin(), chosen.end(), d) != chosen.end()) {
        shape[x_strides.size()] = repeats[d];
        x_strides.push_back(0);
      }
      shape[x_strides.size()] = now[d];
      x_strides.push_back(strides[d]);
    }
    const StridedCopy copy = gpu::copy_to(shape, std::move(x_strides), bytes_of(x.type));
    for (const size_t d : chosen) now[d] *= repeats[d];
    const Ref next = remaining.empty() ? out : program.reserve(now.elements() * copy.bytes);
    program.launch(gpu::strided_copy_plan(copy, call.aligned()), {from}, {next});
    from = next;
  }
}

// Moves channels to blocks of pixels, [N, block block C, H, W] to [N, C, H block, W block], or back. The channels of a
// block have stride C (DCR) or are adjacent (CRD).
Planner plan_block_move(const Node& node, bool to_space) {
  const int64_t block = node.get_int("blocksize");
  const bool crd = node.get_string("mode", "DCR") == "CRD";
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    throw_if(x.shape.rank() != 4, "the data must have four axes");
    const int64_t N = x.shape[0], C = x.shape[1], H = x.shape[2], W = x.shape[3], b = block;
    Shape dims, y;
    std::vector<size_t> perm;
    if (to_space) {
      throw_if(C % (b * b) != 0, "the number of channels must be a multiple of blocksize^2");
      const int64_t channels = C / (b * b);
      dims = crd ? Shape{N, channels, b, b, H, W} : Shape{N, b, b, channels, H, W};
      perm = crd ? std::vector<size_t>{0, 1, 4, 2, 5, 3} : std::vector<size_t>{0, 3, 4, 1, 5, 2};
      y = {N, channels, H * b, W * b};
    } else {
      throw_if(H % b != 0 || W % b != 0, "height and width must be multiples of blocksize");
      dims = {N, C, H / b, b, W / b, b};
      perm = crd ? std::vector<size_t>{0, 1, 3, 5, 2, 4} : std::vector<size_t>{0, 3, 5, 1, 2, 4};
      y = {N, C * b * b, H / b, W / b};
    }
    strided_copy(call, program, gpu::permutation(dims, perm, bytes_of(x.type)), 0, set_output(call, 0, y));
  };
}

std::string refuse_block_move(const Node& node) {
  const int64_t block = node.get_int("blocksize", 0);
  if (block < 1 || block > 1024) return "blocksize is not between 1 and 1024";
  const std::string mode = node.get_string("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") return "this mode is not known";
  return "";
}

Planner plan_layout_change(bool to_last) {
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const Shape y = to_last ? to_channels_last(x.shape) : to_channels_first(x.shape);
    const Ref to = set_output(call, 0, y);
    // Transposes a matrix of channels and pixels for each image.
    const int64_t rows = to_last ? x.shape[1] : x.shape[1] * x.shape[2],
                  columns = to_last ? x.shape[2] * x.shape[3] : x.shape[3];
    if (rows == 1 || columns == 1) {
      program.copy(to, Ref::input(0), x.shape.elements() * bytes_of(x.type));
    } else {
      const int64_t bytes = bytes_of(x.type);
      const gpu::StridedCopy copy = gpu::permutation({x.shape[0], rows, columns}, {0, 2, 1}, bytes);
      program.launch(bytes == 1
                         ? gpu::strided_copy_plan(copy, call.aligned())
                         : gpu::transpose_planes_plan(x.shape[0], rows, columns, bytes, call.aligned()),
                     {Ref::input(0)}, {to});
    }
  };
}

// Returns the attribute `axis`, which may be negative. With channels last, the result is the axis in that layout.
int64_t layout_axis(const Node& node, bool channels_last) {
  const int64_t axis = node.get_int("axis", 0);
  return channels_last ? static_cast<int64_t>(channels_last_axis(axis_of(axis, kLayoutRank))) : axis;
}

// Plans the copies of the inputs `begin`, `begin` + 1, .. of a Concat to Y.
void plan_concat_part(const Call& call, Program& program, const gpu::ConcatProblem& p, size_t begin, Ref y) {
  // If rows are not multiples of 16 bytes, the kernel for all inputs has no 16-byte stores, but strided copies have.
  // Up to kSmall bytes, it is nevertheless faster, because it is one launch.
  constexpr int64_t kSmall = int64_t{1} << 20;
  if (p.vector(call.aligned()) == 16 || p.rows * p.pitch * p.bytes <= kSmall) {
    const auto input = [&](size_t i) { return i < p.widths.size() ? Ref::input(begin + i) : Ref(); };
    static_assert(hip::kConcatInputs == 8);
    program.launch(gpu::concat_plan(p, call.aligned()),
                   {input(0), input(1), input(2), input(3), input(4), input(5), input(6), input(7)}, {y});
    return;
  }
  int64_t at = p.first;
  for (size_t i = 0; i < p.widths.size(); ++i) {
    StridedCopy copy = gpu::copy_to({p.rows, p.widths[i]}, {p.widths[i], 1}, p.bytes);
    copy.y_strides = {p.pitch, 1};
    copy.y_offset = at;
    strided_copy(call, program, copy, begin + i, y);
    at += p.widths[i];
  }
}

Planner plan_concat(const Node& node, bool channels_last) {
  const int64_t given = layout_axis(node, channels_last);
  return [=](Call& call, Program& program) {
    const size_t axis = axis_of(given, call.input(0).shape.rank());
    const Shape y = concatenated(call, 0, 1, axis);
    const Ref out = set_output(call, 0, y);
    gpu::ConcatProblem p;
    p.bytes = bytes_of(call.input(0).type);
    p.rows = y.elements(0, axis);
    p.pitch = y.elements(axis);
    for (size_t begin = 0; begin < call.inputs.size(); begin += hip::kConcatInputs) {
      const size_t end = std::min(call.inputs.size(), begin + hip::kConcatInputs);
      p.widths.clear();
      for (size_t i = begin; i < end; ++i) p.widths.push_back(call.input(i).shape.elements(axis));
      plan_concat_part(call, program, p, begin, out);
      for (const int64_t width : p.widths) p.first += width;
    }
  };
}

void require_parts(const std::vector<int64_t>& sizes, size_t outputs, int64_t dim) {
  throw_if(sizes.size() != outputs, "there must be a size for each output, got ", sizes.size(), " for ",
           outputs);
  for (const int64_t size : sizes) {
    throw_if(size < 0 || size > dim, "the parts are larger than the axis");
    dim -= size;
  }
  throw_if(dim != 0, "the parts are smaller than the axis");
}

// The sizes are input 1, or below opset 13 the attribute `split`. Without either, the parts are equal, except
// that the last one may be smaller.
Planner plan_split(const Node& node, bool channels_last) {
  const int64_t given_axis = layout_axis(node, channels_last);
  const std::optional<int64_t> parts = node.find_int("num_outputs");
  const std::vector<int64_t> given = node.get_ints("split", {});
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const size_t axis = axis_of(given_axis, x.shape.rank()), outputs = call.outputs.size();
    std::vector<int64_t> sizes = call.has_input(1) ? call.integers(1) : given;
    throw_if(parts && *parts != static_cast<int64_t>(outputs),
             "num_outputs differs from the number of outputs");
    if (sizes.empty()) {
      const auto n = static_cast<int64_t>(outputs);
      const int64_t each = (x.shape[axis] + n - 1) / n;
      sizes.assign(outputs, each);
      sizes.back() = x.shape[axis] - each * (n - 1);
    }
    require_parts(sizes, outputs, x.shape[axis]);
    const std::vector<int64_t> strides = gpu::contiguous(x.shape);
    int64_t at = 0;
    for (size_t i = 0; i < outputs; ++i) {
      Shape part = x.shape;
      part[axis] = sizes[i];
      StridedCopy copy = gpu::copy_to(part, strides, bytes_of(x.type));
      copy.x_offset = at * strides[axis];
      plan_part(call, program, copy, i);
      at += sizes[i];
    }
  };
}

std::optional<gpu::PadMode> pad_mode(const Attributes& a) {
  using gpu::PadMode;
  return find_choice<std::string, PadMode>(a.get_string("mode", "constant"),
                                           {{"constant", PadMode::kConstant},
                                            {"reflect", PadMode::kReflect},
                                            {"edge", PadMode::kEdge},
                                            {"wrap", PadMode::kWrap}});
}

// The pads, the value and the axes are inputs 1 to 3.
Planner plan_pad(const Node& node) {
  const gpu::PadMode mode = pad_mode(node).value();
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    const std::vector<int64_t> pads = call.integers(1);
    gpu::PadProblem p;
    p.x = x.shape;
    p.before.assign(rank, 0);
    p.after.assign(rank, 0);
    std::vector<int64_t> axes(pads.size() / 2);
    for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
    if (call.has_input(3)) axes = call.integers(3);
    throw_if(pads.size() != 2 * axes.size(), "two pads for each axis are needed");
    std::vector<bool> seen(rank);
    for (size_t i = 0; i < axes.size(); ++i) {
      const size_t axis = axis_of(axes[i], rank);
      throw_if(seen[axis], "the input axes names an axis twice");
      seen[axis] = true;
      p.before[axis] = pads[i];
      p.after[axis] = pads[axes.size() + i];
    }
    p.mode = mode;
    p.bytes = bytes_of(x.type);
    if (call.has_input(2)) {
      const Tensor& value = call.input(2);
      throw_if(value.type != x.type || value.shape.elements() != 1,
               "the value must be one element of the data's type");
      std::memcpy(&p.value, value.data, static_cast<size_t>(p.bytes));
    }
    const Ref y = set_output(call, 0, p.y());
    program.launch(gpu::pad_plan(p, call.aligned()), {Ref::input(0)}, {y});
  };
}

std::string refuse_pad(const Node& node) {
  const auto& x = node.inputs.front().shape;
  if (!x) return "the rank is not known";
  if (x->rank() > gpu::kMaxAxes) return "the rank is above 5";
  return pad_mode(node) ? "" : "this mode is not known";
}

}  // namespace

std::unique_ptr<Kernel> make_layout_change(gpu::Device& device, bool to_last) {
  return std::make_unique<PlannedKernel>(device, plan_layout_change(to_last));
}

void add_movement(Kernels& kernels) {
  kernels.add_onnx("Transpose", 1, 25, plan_transpose).accepts_all_numbers();
  kernels.add_onnx("Expand", 8, 13, plan_moved<expanded>)
      .reads_on_host({1})
      .reuses(Reuse::kParts)
      .accepts_all_numbers();
  kernels.add_onnx("Tile", 6, 13, plan_tile).reads_on_host({1}).accepts_all_numbers();
  kernels.add_onnx("DepthToSpace", 1, 28, plan_block_move, true)
      .refused(refuse_block_move)
      .accepts_all_numbers();
  kernels.add_onnx("SpaceToDepth", 1, 28, plan_block_move, false)
      .refused(refuse_block_move)
      .accepts_all_numbers();
  kernels.add_onnx("Slice", 10, 13, plan_moved<sliced>)
      .reads_on_host({1, 2, 3, 4})
      .reuses(Reuse::kParts)
      .accepts_all_numbers();
  kernels.add_with_both_layouts("Concat", 4, 13, plan_concat).accepts_all_numbers().with_byte_layouts();
  kernels.add_with_both_layouts("Split", 2, 18, plan_split)
      .reads_on_host({1})
      .reuses(Reuse::kParts)
      .accepts_all_numbers()
      .with_byte_layouts();
  kernels.add_onnx("Pad", 11, 25, plan_pad)
      .refused(refuse_pad)
      .reads_on_host({1, 2, 3})
      .accepts_all_numbers();
}

}  // namespace graphopt
