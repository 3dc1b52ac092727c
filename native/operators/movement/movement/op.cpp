// Operators that move elements: Transpose, Slice, Concat, Split, Expand, Tile, DepthToSpace, SpaceToDepth and
// Pad.
#include "operators/movement/movement/op.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "blocks/half.h"
#include "operators/kernel_bases.h"

namespace graphopt {

gpu::StridedCopy sliced(const Call& call) {
  const Tensor& x = call.input(0);
  const size_t rank = x.shape.rank();
  const std::vector<int64_t> starts = call.integers(1), ends = call.integers(2);
  std::vector<int64_t> axes(starts.size()), steps(starts.size(), 1);
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  if (call.has_input(3)) axes = call.integers(3);
  if (call.has_input(4)) steps = call.integers(4);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
    throw Error("starts, ends, axes and steps must have one length");
  }
  gpu::StridedCopy copy;
  copy.shape = x.shape;
  copy.bytes = bytes_of(x.type);
  copy.x_strides = gpu::contiguous(x.shape);
  std::vector<bool> seen(rank);
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = axis_of(axes[i], rank);
    if (seen[axis]) throw Error("axes names an axis twice");
    seen[axis] = true;
    const int64_t dim = x.shape[axis];
    if (steps[i] == 0) throw Error("a step of 0");
    // A longer step than the axis leaves what the axis' own length does: an element.
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
  gpu::StridedCopy copy;
  copy.shape = gpu::broadcast_shape(x.shape, wanted);
  copy.bytes = bytes_of(x.type);
  copy.x_strides = gpu::broadcast(x.shape, copy.shape);
  copy.y_strides = gpu::contiguous(copy.shape);
  return copy;
}

gpu::StridedCopy transposed(const Call& call, const std::vector<int64_t>& perm) {
  const Tensor& x = call.input(0);
  const size_t rank = x.shape.rank();
  gpu::StridedCopy copy;
  copy.shape = Shape(rank);
  copy.bytes = bytes_of(x.type);
  copy.x_strides.resize(rank);
  if (!perm.empty() && perm.size() != rank) throw Error("perm has another length than the shape");
  std::vector<bool> seen(rank);
  const std::vector<int64_t> strides = gpu::contiguous(x.shape);
  for (size_t d = 0; d < rank; ++d) {
    const size_t from = perm.empty() ? rank - 1 - d : axis_of(perm[d], rank);
    if (seen[from]) throw Error("perm names an axis twice");
    seen[from] = true;
    copy.shape[d] = x.shape[from];
    copy.x_strides[d] = strides[from];
  }
  copy.y_strides = gpu::contiguous(copy.shape);
  return copy;
}

Shape joined(const Call& call, size_t first, size_t step, size_t axis) {
  Shape y = call.input(first).shape;
  y[axis] = 0;
  for (size_t i = first; i < call.inputs.size(); i += step) {
    Shape x = call.input(i).shape;
    if (x.rank() != y.rank()) throw Error("inputs of different ranks");
    y[axis] += x[axis];
    x[axis] = y[axis];
    if (!(x == y)) throw Error("inputs differ in another axis than the one that is joined");
  }
  return y;
}

namespace {

using gpu::StridedCopy;

void strided_copy(const Call& call, Program& program, const StridedCopy& copy, size_t x, Ref y) {
  program.launch(gpu::strided_copy_plan(copy, call.aligned()), {Ref::input(x)}, {y});
}

class Transpose final : public gpu::DeviceKernel {
 public:
  Transpose(const Node& node, gpu::Device& device)
      : DeviceKernel(device), perm_(node.find_ints("perm").value_or(std::vector<int64_t>())) {}

 private:
  void plan(Call& call, Program& program) const override {
    const StridedCopy copy = transposed(call, perm_);
    const Ref y = set_output(call, 0, copy.shape);
    const bool fits = copy.bytes == 2 || copy.bytes == 4;
    if (const auto m = matrices(copy); m && fits && m->rows > 1 && m->columns > 1) {
      program.launch(gpu::swap_planes_plan(m->batch, m->rows, m->columns, copy.bytes, call.aligned()),
                     {Ref::input(0)}, {y});
    } else {
      strided_copy(call, program, copy, 0, y);
    }
  }

  // The matrices of X, where a permutation comes to transposing each of them.
  struct Matrices {
    int64_t batch = 1, rows = 1, columns = 1;
  };
  static std::optional<Matrices> matrices(const StridedCopy& copy) {
    // Axes of Y in runs that lie one behind another in X as well.
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
    const bool swapped = down.stride == 1 && across.stride == m.columns &&
                         (runs.size() == 2 || runs[0].stride == m.rows * m.columns);
    return swapped ? std::optional(m) : std::nullopt;
  }

  std::vector<int64_t> perm_;
};

// What a function of the call copies of input 0.
template <StridedCopy (*kCopy)(const Call&)>
class Moved final : public gpu::DeviceKernel {
 public:
  Moved(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const StridedCopy copy = kCopy(call);
    strided_copy(call, program, copy, 0, set_output(call, 0, copy.shape));
  }
};

// The repeats are input 1.
class Tile final : public gpu::DeviceKernel {
 public:
  Tile(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    const std::vector<int64_t> repeats = call.integers(1);
    if (repeats.size() != rank) throw Error("there must be one repeat for each axis");
    Shape y = x.shape;
    std::vector<size_t> open;  // axes that are still to be repeated
    for (size_t d = 0; d < rank; ++d) {
      if (repeats[d] < 0 || repeats[d] > INT32_MAX) {
        throw Error("a repeat of " + std::to_string(repeats[d]) + " is out of range");
      }
      y[d] *= repeats[d];
      if (repeats[d] != 1) open.push_back(d);
    }
    const Ref out = set_output(call, 0, y);
    Ref from = Ref::input(0);
    if (y.elements() == 0) return;
    if (open.empty()) program.copy(out, from, x.shape.elements() * bytes_of(x.type));
    // Two axes and what lies around them are five, which one copy walks; the last axes come first.
    Shape now = x.shape;
    while (!open.empty()) {
      std::vector<size_t> chosen(open.end() - std::min<ptrdiff_t>(2, std::distance(open.begin(), open.end())),
                                 open.end());
      open.resize(open.size() - chosen.size());
      const std::vector<int64_t> strides = gpu::contiguous(now);
      StridedCopy copy;
      copy.bytes = bytes_of(x.type);
      copy.shape = Shape(rank + chosen.size());
      size_t to = 0;
      for (size_t d = 0; d < rank; ++d) {
        if (std::find(chosen.begin(), chosen.end(), d) != chosen.end()) {
          copy.shape[to++] = repeats[d];
          copy.x_strides.push_back(0);
        }
        copy.shape[to++] = now[d];
        copy.x_strides.push_back(strides[d]);
      }
      copy.y_strides = gpu::contiguous(copy.shape);
      for (const size_t d : chosen) now[d] *= repeats[d];
      const Ref next = open.empty() ? out : program.reserve(now.elements() * copy.bytes);
      program.launch(gpu::strided_copy_plan(copy, call.aligned()), {from}, {next});
      from = next;
    }
  }
};

// Channels to blocks of pixels: [N, block block C, H, W] to [N, C, H block, W block], the channels of a block
// lying C apart (DCR) or side by side (CRD); and back.
class BlockMove final : public gpu::DeviceKernel {
 public:
  BlockMove(const Node& node, gpu::Device& device, bool to_space)
      : DeviceKernel(device),
        block_(node.get_int("blocksize")),
        to_space_(to_space),
        side_by_side_(node.find_string("mode").value_or("DCR") == "CRD") {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    if (x.shape.rank() != 4) throw Error("the data must have four axes");
    const int64_t N = x.shape[0], C = x.shape[1], H = x.shape[2], W = x.shape[3], b = block_;
    Shape dims, y;
    std::vector<size_t> perm;
    if (to_space_) {
      if (C % (b * b) != 0) throw Error("the channels are no multiple of a block's pixels");
      const int64_t channels = C / (b * b);
      dims = side_by_side_ ? Shape{N, channels, b, b, H, W} : Shape{N, b, b, channels, H, W};
      perm = side_by_side_ ? std::vector<size_t>{0, 1, 4, 2, 5, 3} : std::vector<size_t>{0, 3, 4, 1, 5, 2};
      y = {N, channels, H * b, W * b};
    } else {
      if (H % b != 0 || W % b != 0) throw Error("height or width is no multiple of a block's");
      dims = {N, C, H / b, b, W / b, b};
      perm = side_by_side_ ? std::vector<size_t>{0, 1, 3, 5, 2, 4} : std::vector<size_t>{0, 3, 5, 1, 2, 4};
      y = {N, C * b * b, H / b, W / b};
    }
    const std::vector<int64_t> strides = gpu::contiguous(dims);
    StridedCopy copy;
    copy.bytes = bytes_of(x.type);
    copy.shape = Shape(perm.size());
    for (size_t d = 0; d < perm.size(); ++d) {
      copy.shape[d] = dims[perm[d]];
      copy.x_strides.push_back(strides[perm[d]]);
    }
    copy.y_strides = gpu::contiguous(copy.shape);
    strided_copy(call, program, copy, 0, set_output(call, 0, y));
  }

  int64_t block_;
  bool to_space_, side_by_side_;
};

std::string refuse_block_move(const Node& node) {
  const int64_t block = node.find_int("blocksize").value_or(0);
  if (block < 1 || block > 1024) return "a block of this size";
  const std::string mode = node.find_string("mode").value_or("DCR");
  if (mode != "DCR" && mode != "CRD") return "this mode is not known";
  return "";
}

class LayoutChange final : public gpu::DeviceKernel {
 public:
  LayoutChange(gpu::Device& device, bool to_last) : DeviceKernel(device), to_last_(to_last) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const Shape y = to_last_ ? to_channels_last(x.shape) : to_channels_first(x.shape);
    const Ref to = set_output(call, 0, y);
    // A matrix for each image, of channels and pixels.
    const int64_t rows = to_last_ ? x.shape[1] : x.shape[1] * x.shape[2],
                  columns = to_last_ ? x.shape[2] * x.shape[3] : x.shape[3];
    if (rows == 1 || columns == 1) {
      program.copy(to, Ref::input(0), x.shape.elements() * bytes_of(x.type));
    } else {
      program.launch(gpu::swap_planes_plan(x.shape[0], rows, columns, bytes_of(x.type), call.aligned()),
                     {Ref::input(0)}, {to});
    }
  }

  bool to_last_;
};

class Concat final : public gpu::DeviceKernel {
 public:
  Concat(const Node& node, gpu::Device& device, bool last = false)
      : DeviceKernel(device), axis_(node.find_int("axis").value_or(0)) {
    if (last) axis_ = static_cast<int64_t>(channels_last_axis(axis_of(axis_, kLayoutRank)));
  }

 private:
  void plan(Call& call, Program& program) const override {
    const size_t axis = axis_of(axis_, call.input(0).shape.rank());
    const Shape y = joined(call, 0, 1, axis);
    const Ref out = set_output(call, 0, y);
    const std::vector<int64_t> strides = gpu::contiguous(y);
    int64_t at = 0;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Tensor& x = call.input(i);
      StridedCopy copy;
      copy.shape = x.shape;
      copy.bytes = bytes_of(x.type);
      copy.x_strides = gpu::contiguous(x.shape);
      copy.y_strides = strides;
      copy.y_offset = at * strides[axis];
      strided_copy(call, program, copy, i, out);
      at += x.shape[axis];
    }
  }

  int64_t axis_;
};

// The sizes are input 1, an attribute below opset 13, or equal.
class Split final : public gpu::DeviceKernel {
 public:
  Split(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        axis_(node.find_int("axis").value_or(0)),
        parts_(node.find_int("num_outputs")),
        sizes_(node.find_ints("split").value_or(std::vector<int64_t>())) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t axis = axis_of(axis_, x.shape.rank()), outputs = call.outputs.size();
    std::vector<int64_t> sizes = call.has_input(1) ? call.integers(1) : sizes_;
    if (parts_ && *parts_ != static_cast<int64_t>(outputs)) throw Error("num_outputs is not their number");
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
      StridedCopy copy;
      copy.shape = x.shape;
      copy.shape[axis] = sizes[i];
      copy.bytes = bytes_of(x.type);
      copy.x_strides = strides;
      copy.x_offset = at * strides[axis];
      copy.y_strides = gpu::contiguous(copy.shape);
      strided_copy(call, program, copy, 0, set_output(call, i, copy.shape));
      at += sizes[i];
    }
  }

  static void require_parts(const std::vector<int64_t>& sizes, size_t outputs, int64_t dim) {
    if (sizes.size() != outputs) {
      throw Error(std::to_string(sizes.size()) + " sizes for " + std::to_string(outputs) + " outputs");
    }
    for (const int64_t size : sizes) {
      if (size < 0 || size > dim) throw Error("the parts are larger than the axis");
      dim -= size;
    }
    if (dim != 0) throw Error("the parts are smaller than the axis");
  }

  int64_t axis_;
  std::optional<int64_t> parts_;
  std::vector<int64_t> sizes_;
};

std::optional<gpu::PadMode> pad_mode(const Attributes& a) {
  const std::string mode = a.find_string("mode").value_or("constant");
  if (mode == "constant") return gpu::PadMode::kConstant;
  if (mode == "reflect") return gpu::PadMode::kReflect;
  if (mode == "edge") return gpu::PadMode::kEdge;
  if (mode == "wrap") return gpu::PadMode::kWrap;
  return std::nullopt;
}

// Pads, value and axes are inputs 1 to 3.
class Pad final : public gpu::DeviceKernel {
 public:
  Pad(const Node& node, gpu::Device& device) : DeviceKernel(device), mode_(pad_mode(node).value()) {}

 private:
  void plan(Call& call, Program& program) const override {
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
    if (pads.size() != 2 * axes.size()) throw Error("two pads for each axis are needed");
    std::vector<bool> seen(rank);
    for (size_t i = 0; i < axes.size(); ++i) {
      const size_t axis = axis_of(axes[i], rank);
      if (seen[axis]) throw Error("axes names an axis twice");
      seen[axis] = true;
      p.before[axis] = pads[i];
      p.after[axis] = pads[axes.size() + i];
    }
    p.mode = mode_;
    p.bytes = bytes_of(x.type);
    if (call.has_input(2)) {
      const Tensor& value = call.input(2);
      if (value.type != x.type || value.shape.elements() != 1) {
        throw Error("the value must be one element of the data's type");
      }
      std::memcpy(&p.value, value.data, static_cast<size_t>(p.bytes));
    }
    const Ref y = set_output(call, 0, p.y());
    program.launch(gpu::pad_plan(p, call.aligned()), {Ref::input(0)}, {y});
  }

  gpu::PadMode mode_;
};

std::string refuse_pad(const Node& node) {
  const auto& x = node.inputs.front().shape;
  if (!x) return "the rank is not known";
  if (x->rank() > gpu::kMostAxes) return "rank above 5";
  return pad_mode(node) ? "" : "this mode is not known";
}

}  // namespace

std::unique_ptr<Kernel> make_layout_change(gpu::Device& device, bool to_last) {
  return std::make_unique<LayoutChange>(device, to_last);
}

void add_movement(Kernels& kernels) {
  kernels.add_onnx<Transpose>("Transpose", 1, 25).takes_rare_types();
  kernels.add_onnx<Moved<expanded>>("Expand", 8, 13).reads_on_host({1}).takes_rare_types();
  kernels.add_onnx<Tile>("Tile", 6, 13).reads_on_host({1}).takes_rare_types();
  kernels.add_onnx<BlockMove>("DepthToSpace", 1, 28, true).refused(refuse_block_move).takes_rare_types();
  kernels.add_onnx<BlockMove>("SpaceToDepth", 1, 28, false).refused(refuse_block_move).takes_rare_types();
  kernels.add_onnx<Moved<sliced>>("Slice", 10, 13).reads_on_host({1, 2, 3, 4}).takes_rare_types();
  kernels.add_onnx<Concat>("Concat", 4, 13).takes_rare_types().lies([](const Node&) {
    return Layout::kFollows;
  });
  kernels.has_channels_last<Concat>();
  kernels.add_onnx<Split>("Split", 2, 18).reads_on_host({1}).takes_rare_types();
  kernels.add_onnx<Pad>("Pad", 11, 25).refused(refuse_pad).reads_on_host({1, 2, 3}).takes_rare_types();
}

}  // namespace graphopt
