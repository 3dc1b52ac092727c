// Operators that change a tensor's shape but not its bytes, and those that tell it.
#include <algorithm>

#include "operators/room.h"

namespace graphopt {
namespace {

// Output 0 holds the bytes of input 0.
class View : public gpu::DeviceKernel {
 public:
  View(const Node&, gpu::Device& device) : DeviceKernel(device) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const Shape y = shape(call);
    if (y.elements() != x.shape.elements()) {
      throw Error("the shape " + y.text() + " does not hold the elements of " + x.shape.text());
    }
    program.copy(set_output(call, 0, y), Ref::input(0), static_cast<int64_t>(x.bytes()));
  }

  virtual Shape shape(const Call& call) const = 0;
};

class Identity final : public View {
 public:
  using View::View;

 private:
  Shape shape(const Call& call) const override { return call.input(0).shape; }
};

std::string refuse_dropout(const Node& node) {
  if (node.outputs.size() > 1 && node.outputs[1].present) return "its mask is wanted";
  if (!node.has_input(2)) return "";
  const auto training = node.constant(2);
  if (!training || training->type != ElementType::kBool || training->shape.elements() != 1) {
    return "whether it trains is not known";
  }
  return *training->as<bool>() ? "it trains" : "";
}

class Reshape final : public View {
 public:
  Reshape(const Node& node, gpu::Device& device)
      : View(node, device), allow_zero_(node.find_int("allowzero").value_or(0) != 0) {}

 private:
  Shape shape(const Call& call) const override {
    const Shape& x = call.input(0).shape;
    const std::vector<int64_t> wanted = call.integers(1);
    Shape y(wanted.size());
    int64_t known = 1;
    size_t open = wanted.size();
    for (size_t d = 0; d < wanted.size(); ++d) {
      y[d] = wanted[d];
      if (wanted[d] == 0 && !allow_zero_) {
        if (d >= x.rank()) throw Error("a dim of 0 in the shape has no counterpart in " + x.text());
        y[d] = x[d];
      }
      if (wanted[d] == -1) {
        open = d;
      } else {
        known *= y[d];
      }
    }
    if (open < wanted.size()) {
      if (known == 0 || x.elements() % known != 0)
        throw Error("no shape that holds the elements of " + x.text());
      y[open] = x.elements() / known;
    }
    return y;
  }

  bool allow_zero_;
};

class Flatten final : public View {
 public:
  Flatten(const Node& node, gpu::Device& device)
      : View(node, device), axis_(node.find_int("axis").value_or(1)) {}

 private:
  Shape shape(const Call& call) const override {
    const Shape& x = call.input(0).shape;
    // All axes may be flattened into the first: this one may be behind the last.
    const auto rank = static_cast<int64_t>(x.rank());
    const size_t axis = axis_ == rank ? x.rank() : axis_of(axis_, x.rank());
    return {x.elements(0, axis), x.elements(axis)};
  }

  int64_t axis_;
};

std::vector<bool> marked(const std::vector<int64_t>& axes, size_t rank) {
  std::vector<bool> marks(rank, false);
  for (const int64_t axis : axes) marks[axis_of(axis, rank)] = true;
  return marks;
}

// Squeeze and Unsqueeze: the axes are input 1, or an attribute below opset 13.
class AxesView : public View {
 public:
  AxesView(const Node& node, gpu::Device& device)
      : View(node, device), axes_(node.find_ints("axes").value_or(std::vector<int64_t>())) {}

 protected:
  std::vector<int64_t> axes(const Call& call) const { return call.has_input(1) ? call.integers(1) : axes_; }

 private:
  std::vector<int64_t> axes_;
};

class Unsqueeze final : public AxesView {
 public:
  using AxesView::AxesView;

 private:
  Shape shape(const Call& call) const override {
    const Shape& x = call.input(0).shape;
    const std::vector<int64_t> added = axes(call);
    const std::vector<bool> is_new = marked(added, x.rank() + added.size());
    Shape y(is_new.size());
    size_t from = 0;
    for (size_t d = 0; d < is_new.size(); ++d) y[d] = is_new[d] ? 1 : x[from++];
    return y;
  }
};

class Squeeze final : public AxesView {
 public:
  using AxesView::AxesView;

 private:
  Shape shape(const Call& call) const override {
    const Shape& x = call.input(0).shape;
    const std::vector<int64_t> given = axes(call);
    std::vector<bool> dropped = marked(given, x.rank());
    size_t rank = 0;
    for (size_t d = 0; d < x.rank(); ++d) {
      if (given.empty()) dropped[d] = x[d] == 1;
      if (!dropped[d]) ++rank;
    }
    Shape y(rank);
    size_t to = 0;
    for (size_t d = 0; d < x.rank(); ++d) {
      if (!dropped[d]) y[to++] = x[d];
    }
    return y;
  }
};

// In host memory; nothing is enqueued.
class ShapeOf final : public Kernel {
 public:
  ShapeOf(const Node& node, gpu::Device& device)
      : device_(device), start_(node.find_int("start").value_or(0)), end_(node.find_int("end")) {}

  gpu::Device* device() const override { return &device_; }

  void plan(Call& call) const override {
    const auto [begin, end] = range(call);
    call.set_output(0, {end - begin}, ElementType::kInt64, Place::kHost);
  }

  bool run(Call& call) const override {
    const int64_t* dims = call.inputs[0].shape.data();
    const auto [begin, end] = range(call);
    std::copy(dims + begin, dims + end, call.outputs[0].as<int64_t>());
    return true;
  }

 private:
  std::pair<int64_t, int64_t> range(const Call& call) const {
    const auto rank = static_cast<int64_t>(call.input(0).shape.rank());
    const auto clamp = [rank](int64_t i) {
      return std::min(std::max<int64_t>(i < 0 ? i + rank : i, 0), rank);
    };
    const int64_t begin = clamp(start_);
    return {begin, std::max(begin, clamp(end_.value_or(rank)))};
  }

  gpu::Device& device_;
  int64_t start_;
  std::optional<int64_t> end_;
};

// In host memory; nothing is enqueued.
class SizeOf final : public Kernel {
 public:
  SizeOf(const Node&, gpu::Device& device) : device_(device) {}

  gpu::Device* device() const override { return &device_; }
  void plan(Call& call) const override { call.set_output(0, Shape(), ElementType::kInt64, Place::kHost); }
  bool run(Call& call) const override {
    *call.outputs[0].as<int64_t>() = call.inputs[0].shape.elements();
    return true;
  }

 private:
  gpu::Device& device_;
};

}  // namespace

void add_shape(Kernels& kernels) {
  kernels.add_onnx<Identity>("Identity", 1, 25).reuses(Reuse::kAlias).takes_rare_types().takes_packed_types();
  kernels.add_onnx<Identity>("Dropout", 7, 22)
      .refused(refuse_dropout)
      .reuses(Reuse::kAlias)
      .reads_on_host({1, 2});
  kernels.add_onnx<Reshape>("Reshape", 5, 25)
      .reuses(Reuse::kAlias)
      .reads_on_host({1})
      .takes_rare_types()
      .takes_packed_types();
  kernels.add_onnx<Flatten>("Flatten", 1, 25).reuses(Reuse::kAlias).takes_rare_types().takes_packed_types();
  kernels.add_onnx<Squeeze>("Squeeze", 1, 25)
      .reuses(Reuse::kAlias)
      .reads_on_host({1})
      .takes_rare_types()
      .takes_packed_types();
  kernels.add_onnx<Unsqueeze>("Unsqueeze", 1, 25)
      .reuses(Reuse::kAlias)
      .reads_on_host({1})
      .takes_rare_types()
      .takes_packed_types();
  kernels.add_onnx<ShapeOf>("Shape", 1, 25).writes_on_host({0}).takes_rare_types().takes_packed_types();
  kernels.add_onnx<SizeOf>("Size", 1, 25).writes_on_host({0}).takes_rare_types().takes_packed_types();
}

}  // namespace graphopt
