// Softmax, LayerNormalization, reductions and pooling.
#include <algorithm>

#include "operators/pool/plan.h"
#include "operators/reduction/plan.h"
#include "operators/row_norm/plan.h"
#include "operators/standard.h"
#include "operators/window.h"

namespace graphopt::ep {
namespace {

class Softmax final : public gpu::DeviceKernel {
 public:
  Softmax(const Node&, gpu::Device& device, bool log) : DeviceKernel(device), log_(log) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    if (x.shape.rank() == 0) throw Error("a scalar has no last axis");
    const int64_t D = x.shape.elements(x.shape.rank() - 1), rows = D == 0 ? 0 : x.shape.elements() / D;
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::softmax_plan(rows, D, log_, is_half(x), device_.facts()), {Ref::input(0)}, {y});
  }

  bool log_;
};

// -1 is the last axis of a tensor of any rank, also of one that is not known before it exists.
std::string refuse_unless_last(const Node& node, int64_t axis) {
  if (axis == -1) return "";
  const auto& x = node.inputs.front().shape;
  if (!x) return "the rank is not known";
  return axis == static_cast<int64_t>(x->rank()) - 1 ? "" : "only the last axis";
}

// Below opset 13 the axes from `axis` on are one; then, too, the last axis is the only one when it is given.
std::string refuse_softmax(const Node& node) {
  if (!is_float(node.inputs.front().type)) return "only float and float16";
  return refuse_unless_last(node, node.find_int("axis").value_or(node.version < 13 ? 1 : -1));
}

class LayerNormalization final : public gpu::DeviceKernel {
 public:
  LayerNormalization(const Node& node, gpu::Device& device)
      : DeviceKernel(device), epsilon_(node.find_float("epsilon").value_or(1e-5f)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &gamma = call.input(1), &beta = call.input(2);
    const int64_t D = gamma.shape.elements();
    if (x.shape.rank() == 0 || x.shape.elements(x.shape.rank() - 1) != D || beta.shape.elements() != D) {
      throw Error("Scale and B must have the size of the last axis");
    }
    const RowNormProblem p = {D == 0 ? 0 : x.shape.elements() / D, D, epsilon_, false, false, false};
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::row_norm_plan(p, is_half(x), call.aligned(), device_.facts()),
                   {Ref::input(0), Ref::input(1), Ref::input(2)}, {y});
  }

  float epsilon_;
};

std::string refuse_layer_norm(const Node& node) {
  const std::string mixed = refuse_mixed_floats(node);
  if (!mixed.empty()) return mixed;
  if (!node.has_input(2)) return "without B";
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i].present) return "only the first output";
  }
  return refuse_unless_last(node, node.find_int("axis").value_or(-1));
}

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
  GlobalPool(const Node&, gpu::Device& device, gpu::Reduction how) : DeviceKernel(device), how_(how) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    if (x.shape.rank() < 2) throw Error("X must have rank 2 or more");
    Shape y = x.shape;
    for (size_t d = 2; d < y.rank(); ++d) y[d] = 1;
    const Ref out = set_output(call, 0, y);
    program.launch(gpu::reduce_plan(x.shape[0] * x.shape[1], x.shape.elements(2), 1, how_, is_half(x)),
                   {Ref::input(0)}, {out});
  }

  gpu::Reduction how_;
};

// MaxPool and AveragePool.
class Pool final : public gpu::DeviceKernel {
 public:
  Pool(const Node& node, gpu::Device& device, bool average)
      : DeviceKernel(device), window_(node), ceil_(node.find_int("ceil_mode").value_or(0) != 0) {
    if (average) {
      const bool counted = node.find_int("count_include_pad").value_or(0) != 0;
      mode_ = counted ? gpu::PoolMode::kAverageWithPadding : gpu::PoolMode::kAverage;
    }
  }

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const size_t axes = x.shape.rank() - 2;
    if (x.shape.rank() < 3 || axes > gpu::kSpatialAxes) throw Error("only one to three spatial axes");
    if (window_.kernel().empty()) throw Error("without kernel_shape");
    window_.check(axes, window_.kernel());
    gpu::PoolProblem p;
    p.planes = x.shape[0] * x.shape[1];
    p.mode = mode_;
    Shape y = x.shape;
    for (size_t i = 0; i < axes; ++i) {
      const int64_t in = x.shape[2 + i], kernel = window_.kernel()[i], stride = window_.stride(i),
                    span = window_.span(i, kernel);
      const Window::Padding pad = window_.padding(i, in, span);
      const int64_t out = outputs(in, stride, span, pad);
      gpu::to_u31(out * stride + span);
      const size_t d = gpu::kSpatialAxes - axes + i;
      p.out[d] = y[2 + i] = out;
      p.axes[d] = {gpu::to_i31(in),
                   gpu::to_i31(kernel),
                   gpu::to_i31(stride),
                   -gpu::to_i31(pad.begin),
                   gpu::to_i31(window_.dilation(i)),
                   gpu::to_i31(in + pad.end)};
    }
    const Ref to = set_output(call, 0, y);
    program.launch(gpu::pool_plan(p, is_half(x)), {Ref::input(0)}, {to});
  }

  // The formula of the operators' specification. A window that would begin in the padding at the end is
  // dropped.
  int64_t outputs(int64_t in, int64_t stride, int64_t span, const Window::Padding& pad) const {
    const int64_t free = in + pad.begin + pad.end - span;
    if (free < 0) throw Error("the window is larger than the padded input");
    const int64_t n = (free + (ceil_ ? stride - 1 : 0)) / stride + 1;
    return ceil_ && (n - 1) * stride >= in + pad.begin ? n - 1 : n;
  }

  Window window_;
  bool ceil_;
  gpu::PoolMode mode_ = gpu::PoolMode::kMax;
};

std::string refuse_pool(const Node& node) {
  const auto& x = node.inputs.front().shape;
  if (!is_float(node.inputs.front().type)) return "only float and float16";
  if (!x || x->rank() < 3 || x->rank() > 2 + gpu::kSpatialAxes) return "only one to three spatial axes";
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i].present) return "no indices";
  }
  const std::string padding = node.find_string("auto_pad").value_or("NOTSET");
  if (padding != "NOTSET" && node.find_ints("pads")) return "auto_pad and pads";
  if (padding == "SAME_UPPER" || padding == "SAME_LOWER") {
    // Runtimes differ in what these mean.
    const auto dilations = node.find_ints("dilations").value_or(std::vector<int64_t>());
    const bool dilated = std::any_of(dilations.begin(), dilations.end(), [](int64_t d) { return d != 1; });
    if (dilated || node.find_int("ceil_mode").value_or(0) != 0) return "auto_pad with dilations or ceil_mode";
  }
  return node.find_int("storage_order").value_or(0) == 0 ? "" : "storage_order";
}

std::string refuse_global_pool(const Node& node) {
  const auto& x = node.inputs.front().shape;
  if (!is_float(node.inputs.front().type)) return "only float and float16";
  return !x || x->rank() < 3 ? "rank below 3" : "";
}

}  // namespace

void add_reductions(Operators& operators) {
  const auto reduce = [&](const char* name, gpu::Reduction how) {
    operators.add<Reduce>(name, 1, 20, how).refused(refuse_reduce).reads_on_host({1});
  };
  operators.add<Softmax>("Softmax", 1, 13, false).refused(refuse_softmax);
  operators.add<Softmax>("LogSoftmax", 1, 13, true).refused(refuse_softmax);
  operators.add<LayerNormalization>("LayerNormalization", 1, 17).refused(refuse_layer_norm);
  reduce("ReduceMean", gpu::Reduction::kMean);
  reduce("ReduceSum", gpu::Reduction::kSum);
  reduce("ReduceMax", gpu::Reduction::kMax);
  reduce("ReduceMin", gpu::Reduction::kMin);
  operators.add<GlobalPool>("GlobalAveragePool", 1, 22, gpu::Reduction::kMean).refused(refuse_global_pool);
  operators.add<GlobalPool>("GlobalMaxPool", 1, 22, gpu::Reduction::kMax).refused(refuse_global_pool);
  operators.add<Pool>("MaxPool", 1, 22, false).refused(refuse_pool);
  operators.add<Pool>("AveragePool", 1, 22, true).refused(refuse_pool);
}

}  // namespace graphopt::ep
