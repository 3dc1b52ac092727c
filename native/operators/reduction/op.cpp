// Reductions over neighbouring axes, and pools over all pixels.
#include "operators/reduction/op.h"

#include <algorithm>

#include "operators/room.h"

namespace graphopt {
namespace {

// x [outer, R, inner] over R, when the reduced axes are neighbours.
class Reduce final : public gpu::DeviceKernel {
 public:
  Reduce(const Node& node, gpu::Device& device, gpu::Reduction how)
      : DeviceKernel(device),
        how_(how),
        axes_(node.find_ints("axes").value_or(std::vector<int64_t>())),
        keep_(node.find_int("keepdims").value_or(1) != 0),
        none_is_all_(node.find_int("noop_with_empty_axes").value_or(0) == 0) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank();
    const std::vector<int64_t> axes = call.has_input(1) ? call.integers(1) : axes_;
    std::vector<bool> reduced(rank, axes.empty() && none_is_all_);
    for (const int64_t axis : axes) reduced[axis_of(axis, rank)] = true;
    int64_t outer = 1, R = 1, inner = 1;
    int64_t* part = &outer;
    Shape y(rank);
    size_t kept = 0;
    for (size_t d = 0; d < rank; ++d) {
      if (reduced[d] && part == &outer) part = &R;
      if (!reduced[d] && part == &R) part = &inner;
      if (reduced[d] && part == &inner) throw Error("the reduced axes must be neighbours");
      *part *= x.shape[d];
      if (!reduced[d] || keep_) y[kept++] = reduced[d] ? 1 : x.shape[d];
    }
    Shape shape(kept);
    std::copy(y.data(), y.data() + kept, shape.data());
    const Ref out = set_output(call, 0, shape);
    program.launch(gpu::reduce_plan(outer, R, inner, how_, is_half(x)), {Ref::input(0)}, {out});
  }

  gpu::Reduction how_;
  std::vector<int64_t> axes_;
  bool keep_, none_is_all_;
};

std::string refuse_reduce(const Node& node) {
  const auto& x = node.inputs.front().shape;
  if (!is_float(node.inputs.front().type)) return "only float and float16";
  if (!x || x->rank() == 0) return "the rank is not known";
  std::vector<int64_t> axes = node.find_ints("axes").value_or(std::vector<int64_t>());
  if (node.has_input(1)) {
    const auto given = node.constant(1);
    if (!given) return "the axes are not constant";
    const auto* p = static_cast<const int64_t*>(given->data);
    axes.assign(p, p + given->shape.elements());
  }
  for (int64_t& axis : axes) axis = axis < 0 ? axis + static_cast<int64_t>(x->rank()) : axis;
  std::sort(axes.begin(), axes.end());
  for (size_t i = 1; i < axes.size(); ++i) {
    if (axes[i] != axes[i - 1] + 1) return "the reduced axes are not neighbours";
  }
  return "";
}

// All axes from the third on.
class GlobalPool final : public gpu::DeviceKernel {
 public:
  GlobalPool(const Node&, gpu::Device& device, gpu::Reduction how, bool last = false)
      : DeviceKernel(device), how_(how), last_(last) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    if (x.shape.rank() < 2) throw Error("X must have rank 2 or more");
    Shape y = x.shape;
    const size_t first = last_ ? 1 : 2, end = last_ ? y.rank() - 1 : y.rank();
    int64_t pixels = 1;
    for (size_t d = first; d < end; ++d) {
      pixels *= y[d];
      y[d] = 1;
    }
    const int64_t images = x.shape[0], channels = y.elements(1);
    const Ref out = set_output(call, 0, y);
    program.launch(
        gpu::reduce_plan(last_ ? images : images * channels, pixels, last_ ? channels : 1, how_, is_half(x)),
        {Ref::input(0)}, {out});
  }

  gpu::Reduction how_;
  bool last_;
};

std::string refuse_global_pool(const Node& node) {
  const auto& x = node.inputs.front().shape;
  if (!is_float(node.inputs.front().type)) return "only float and float16";
  return !x || x->rank() < 3 ? "rank below 3" : "";
}

}  // namespace

void add_reduction(Kernels& kernels) {
  const auto reduce = [&](const char* name, gpu::Reduction how) {
    kernels.add_onnx<Reduce>(name, 1, 20, how).refused(refuse_reduce).reads_on_host({1});
  };
  reduce("ReduceMean", gpu::Reduction::kMean);
  reduce("ReduceSum", gpu::Reduction::kSum);
  reduce("ReduceMax", gpu::Reduction::kMax);
  reduce("ReduceMin", gpu::Reduction::kMin);
  const auto follows = [](const Node&) { return Layout::kFollows; };
  kernels.add_onnx<GlobalPool>("GlobalAveragePool", 1, 22, gpu::Reduction::kMean)
      .refused(refuse_global_pool)
      .lies(follows);
  kernels.has_channels_last<GlobalPool>(gpu::Reduction::kMean);
  kernels.add_onnx<GlobalPool>("GlobalMaxPool", 1, 22, gpu::Reduction::kMax)
      .refused(refuse_global_pool)
      .lies(follows);
  kernels.has_channels_last<GlobalPool>(gpu::Reduction::kMax);
}

}  // namespace graphopt
