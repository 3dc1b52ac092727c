// MaxPool, AveragePool and LRN.
#include "operators/pooling/pool/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"
#include "operators/window.h"

namespace graphopt {
PoolWindows::PoolWindows(const Node& node, bool average) : window_(node), ceil_(node.get_bool("ceil_mode")) {
  if (average) {
    const bool counted = node.get_bool("count_include_pad");
    mode_ = counted ? gpu::PoolMode::kAverageWithPadding : gpu::PoolMode::kAverage;
  }
}

gpu::PoolProblem PoolWindows::problem(const Shape& x, bool channels_last, Shape& y) const {
  const size_t axes = x.rank() - 2;
  throw_if(x.rank() < 3 || axes > gpu::kSpatialAxes, "the number of spatial axes is not 1, 2 or 3");
  throw_if(window_.kernel().empty(), "kernel_shape is missing");
  window_.check(axes, window_.kernel());
  const size_t first = channels_last ? 1 : 2;
  gpu::PoolProblem p;
  p.planes = channels_last ? x[0] : x[0] * x[1];
  p.mode = mode_;
  y = x;
  for (size_t i = 0; i < axes; ++i) {
    const int64_t in = x[first + i], kernel = window_.kernel()[i], stride = window_.stride(i),
                  span = window_.span(i, kernel);
    const Window::Padding pad = window_.padding(i, in, span);
    const int64_t out = output_size(in, stride, span, pad);
    gpu::to_u31(out * stride + span);
    const size_t d = gpu::kSpatialAxes - axes + i;
    p.out[d] = y[first + i] = out;
    p.axes[d] = {gpu::to_i31(in),
                 gpu::to_i31(kernel),
                 gpu::to_i31(stride),
                 -gpu::to_i31(pad.begin),
                 gpu::to_i31(window_.dilation(i)),
                 gpu::to_i31(in + pad.end)};
  }
  return p;
}

bool PoolWindows::cover(const Shape& x) const {
  for (size_t i = 0; i < window_.kernel().size(); ++i) {
    const int64_t in = x[2 + i], kernel = window_.kernel()[i];
    const Window::Padding pad = window_.padding(i, in, window_.span(i, kernel));
    if (kernel != in || pad.begin != 0 || pad.end != 0) return false;
  }
  return true;
}

// The formula of ONNX. With ceil_mode, a window that would start in the padding at the end is dropped.
int64_t PoolWindows::output_size(int64_t in, int64_t stride, int64_t span, const Window::Padding& pad) const {
  const int64_t slack = in + pad.begin + pad.end - span;
  const int64_t n = pool_positions(slack + (ceil_ && slack > 0 ? stride - 1 : 0), stride);
  throw_if(n < 0, "the window is larger than the padded input");
  return ceil_ && (n - 1) * stride >= in + pad.begin ? n - 1 : n;
}

std::string refuse_pool_windows(const Node& node) {
  const auto& x = node.inputs.front().shape;
  if (!x || x->rank() < 3 || x->rank() > 2 + gpu::kSpatialAxes)
    return "the number of spatial axes is not 1, 2 or 3";
  const std::string padding = node.get_string("auto_pad", "NOTSET");
  if (padding != "NOTSET" && node.find_ints("pads")) return "auto_pad and pads are both set";
  if (padding == "SAME_UPPER" || padding == "SAME_LOWER") {
    // Runtimes interpret these attributes differently when combined with dilations or ceil_mode.
    const auto dilations = node.get_ints("dilations", {});
    const bool dilated = std::any_of(dilations.begin(), dilations.end(), [](int64_t d) { return d != 1; });
    if (dilated || node.get_bool("ceil_mode")) return "auto_pad is combined with dilations or ceil_mode";
  }
  return "";
}

namespace {

Planner plan_pool(const Node& node, bool average, bool channels_last) {
  const PoolWindows windows(node, average);
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    Shape y;
    const gpu::PoolProblem p = windows.problem(x.shape, channels_last, y);
    const Ref to = set_output(call, 0, y);
    program.launch(channels_last ? gpu::pool_channels_last_plan(p, x.type, x.shape[3], call.aligned())
                                 : gpu::pool_plan(p, x.type, call.aligned()),
                   {Ref::input(0)}, {to});
  };
}

std::string refuse_pool(const Node& node, bool average) {
  const ElementType x = node.inputs.front().type;
  if (!is_float(x) && (average || !is_byte(x))) return no_kernel(x);
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i].present) return "the output of indices is used";
  }
  if (node.get_bool("storage_order")) return "storage_order is set";
  return refuse_pool_windows(node);
}

Planner plan_lrn(const Node& node) {
  gpu::LrnProblem of_node;
  of_node.size = node.get_int("size");
  of_node.alpha = node.get_float("alpha", of_node.alpha);
  of_node.beta = node.get_float("beta", of_node.beta);
  of_node.bias = node.get_float("bias", of_node.bias);
  throw_if(of_node.size < 1 || of_node.size > INT32_MAX, "size must be positive");
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    throw_if(x.shape.rank() < 2, "X must have rank 2 or more");
    gpu::LrnProblem p = of_node;
    p.images = x.shape[0];
    p.channels = x.shape[1];
    p.inner = x.shape.elements(2);
    const Ref y = set_output(call, 0, x.shape);
    program.launch(gpu::lrn_plan(p, is_half(x), call.aligned()), {Ref::input(0)}, {y});
  };
}

std::string refuse_lrn(const Node& node) {
  return is_float(node.type()) ? "" : "the type is neither float nor float16";
}

}  // namespace

void add_pool(Kernels& kernels) {
  kernels.add_with_both_layouts("MaxPool", 1, 22, plan_pool, false)
      .refused([](const Node& node) { return refuse_pool(node, false); })
      .with_byte_layouts();
  kernels.add_with_both_layouts("AveragePool", 1, 22, plan_pool, true).refused([](const Node& node) {
    return refuse_pool(node, true);
  });
  kernels.add_onnx("LRN", 1, 13, plan_lrn).refused(refuse_lrn);
}

}  // namespace graphopt
