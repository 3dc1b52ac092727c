// Conv and ConvTranspose of one to three spatial axes: the vendor's library where it is installed and takes
// them, else kernels of our own.
#include <algorithm>

#include "abi/error.h"
#include "ep/operators.h"
#include "ep/window.h"
#include "gpu/convolution_plan.h"
#include "gpu/gemm_plan.h"
#include "gpu/libraries.h"
#include "gpu/strided_copy_plan.h"

namespace graphopt::ep {
namespace {

using abi::GraphNode;
using gpu::ConvolutionProblem;

// The kernels for one and two axes move the window over H and W.
bool moves_in_a_plane(const ConvolutionProblem& p) {
  return !p.transposed && p.in[0] == 1 && p.kernel[0] == 1 && p.out[0] == 1;
}

void run_own(Execution& e, const ConvolutionProblem& p, const Tensor& x, const void* w, const void* bias,
             void* y) {
  const bool half = x.type == ElementType::kHalf;
  if (moves_in_a_plane(p)) {
    e.run(gpu::conv_plan(p, half, aligned({x.data, w, bias, y}), e.device().facts()), {x.data, w, bias}, {y});
  } else {
    e.run(gpu::convolution_plan(p, half), {x.data, w, bias}, {y});
  }
}

// Y[n] = W X[n] + b over the pixels that the strides leave. The libraries' convolutions come to the same
// product, by way of more work on the host than the product of one image takes on the device.
void multiply_pixels(Execution& e, const ConvolutionProblem& conv, const Tensor& x, const Tensor& w,
                     const void* bias, void* y) {
  const bool half = x.type == ElementType::kHalf;
  gpu::GemmProblem p;
  p.M = conv.M;
  p.K = conv.C;
  p.N = conv.out[0] * conv.out[1] * conv.out[2];
  p.batch = {conv.N};
  p.a_batch = {0};
  p.b_batch = {p.K * p.N};
  if (bias != nullptr) {
    p.beta = 1;
    broadcast(e, bias, {1, p.M, 1}, half, {conv.N, p.M, p.N}, y);
  }
  if (std::equal(std::begin(conv.in), std::end(conv.in), std::begin(conv.out))) {
    multiply(e, p, w, x, y);
    return;
  }
  gpu::StridedCopy copy;
  copy.shape = {conv.N * conv.C, conv.out[0], conv.out[1], conv.out[2]};
  copy.x_strides = {conv.in[0] * conv.in[1] * conv.in[2], conv.stride[0] * conv.in[1] * conv.in[2],
                    conv.stride[1] * conv.in[2], conv.stride[2]};
  copy.y_strides = {p.N, conv.out[1] * conv.out[2], conv.out[2], 1};
  copy.bytes = half ? 2 : 4;
  const Scratch pixels = e.scratch(static_cast<size_t>(copy.shape.elements() * copy.bytes));
  e.run(gpu::strided_copy_plan(copy, aligned({x.data, pixels.data()})), {x.data}, {pixels.data()});
  multiply(e, p, w, {pixels.data(), x.type, Place::kDevice, {conv.N, conv.C, p.N}}, y);
}

class Convolution : public OpKernel {
 public:
  explicit Convolution(const Attributes& a) : window_(a), groups_(a.find_int("group").value_or(1)) {}

  void run(Execution& e) const override {
    const Tensor &x = e.input(0), &w = e.input(1);
    const size_t rank = x.shape.rank(), axes = rank - 2;
    if (rank < 3 || axes > gpu::kSpatialAxes || w.shape.rank() != rank) {
      throw Error("only one to three spatial axes");
    }
    window_.check(axes, std::vector<int64_t>(w.shape.data() + 2, w.shape.data() + rank));
    if (groups_ < 1) throw Error("group must be 1 or more");
    ConvolutionProblem p = problem(x.shape, w.shape);
    p.N = x.shape[0];
    p.groups = groups_;
    p.has_bias = e.has_input(2);
    if (p.C * groups_ != x.shape[1]) {
      throw Error("the channels of X " + x.shape.text() + " and W " + w.shape.text() + " do not fit");
    }
    const int64_t channels = p.M * groups_;
    if (p.has_bias && e.input(2).shape.elements() != channels) {
      throw Error("B " + e.input(2).shape.text() + " does not have one number for each output channel");
    }
    for (size_t i = 0; i < axes; ++i) {
      const size_t d = gpu::kSpatialAxes - axes + i;
      p.in[d] = x.shape[2 + i];
      p.kernel[d] = w.shape[2 + i];
      p.stride[d] = window_.stride(i);
      p.dilation[d] = window_.dilation(i);
      place(p, d, i);
      if (p.out[d] < 0) throw Error("the kernel is larger than the padded input");
    }
    Shape y = x.shape;
    y[1] = channels;
    for (size_t i = 0; i < axes; ++i) y[2 + i] = p.out[gpu::kSpatialAxes - axes + i];
    void* result = e.output(0, y);
    if (y.elements() == 0) return;
    const void* bias = p.has_bias ? e.input(2).data : nullptr;
    const bool half = x.type == ElementType::kHalf;
    if (is_pointwise(p)) {
      multiply_pixels(e, p, x, w, bias, result);
      return;
    }
    if (gpu::Dnn* dnn = x.shape.elements() > 0 && pads_evenly(p) ? gpu::dnn(e.device()) : nullptr) {
      if (const auto bytes = dnn->conv_workspace(p, half, e.stream())) {
        const Scratch workspace = e.scratch(*bytes);
        dnn->conv(p, half, x.data, w.data, bias, result, workspace.data(), e.stream());
        return;
      }
    }
    run_own(e, p, x, w.data, bias, result);
  }

 protected:
  // Sets C and M, and throws Error where W's do not divide into the groups.
  virtual ConvolutionProblem problem(const Shape& x, const Shape& w) const = 0;
  // Sets `out` and `pad` of axis d, which is axis i of the attributes. No outputs: a negative `out`.
  virtual void place(ConvolutionProblem& p, size_t d, size_t i) const = 0;

  Window window_;
  int64_t groups_;

 private:
  // Outputs beyond the input lie in padding.
  static bool is_pointwise(const ConvolutionProblem& p) {
    for (size_t d = 0; d < gpu::kSpatialAxes; ++d) {
      if (p.kernel[d] != 1 || p.pad[d] != 0 || (p.out[d] - 1) * p.stride[d] >= p.in[d]) return false;
    }
    return !p.transposed && p.groups == 1 && p.C > 0;
  }

  // Libraries know one padding for both ends of an axis; what is beyond the last window does not matter.
  static bool pads_evenly(const ConvolutionProblem& p) {
    for (size_t d = 0; d < gpu::kSpatialAxes; ++d) {
      const int64_t from = p.transposed ? p.out[d] : p.in[d], to = p.transposed ? p.in[d] : p.out[d];
      const int64_t free = from + 2 * p.pad[d] - p.span(d);
      if (free < 0 || free / p.stride[d] + 1 != to) return false;
    }
    return true;
  }
};

class Conv final : public Convolution {
 public:
  using Convolution::Convolution;

 private:
  ConvolutionProblem problem(const Shape&, const Shape& w) const override {
    ConvolutionProblem p;
    p.C = w[1];
    p.M = w[0] / groups_;
    if (p.M * groups_ != w[0]) throw Error("W " + w.text() + " does not divide into the groups");
    return p;
  }

  void place(ConvolutionProblem& p, size_t d, size_t i) const override {
    const Window::Padding padding = window_.padding(i, p.in[d], p.span(d));
    const int64_t free = p.in[d] + padding.begin + padding.end - p.span(d);
    p.pad[d] = padding.begin;
    p.out[d] = free < 0 ? -1 : free / p.stride[d] + 1;
  }
};

class ConvTranspose final : public Convolution {
 public:
  explicit ConvTranspose(const Attributes& a)
      : Convolution(a),
        output_padding_(a.find_ints("output_padding").value_or(std::vector<int64_t>())),
        output_shape_(a.find_ints("output_shape").value_or(std::vector<int64_t>())) {}

 private:
  ConvolutionProblem problem(const Shape& x, const Shape& w) const override {
    ConvolutionProblem p;
    p.transposed = true;
    p.C = w[0] / groups_;
    p.M = w[1];
    if (p.C * groups_ != w[0]) throw Error("W " + w.text() + " does not divide into the groups");
    require_sizes(x.rank() - 2, output_padding_, 0);
    require_sizes(x.rank() - 2, output_shape_, 0);
    return p;
  }

  void place(ConvolutionProblem& p, size_t d, size_t i) const override {
    const int64_t more = output_padding_.empty() ? 0 : output_padding_[i];
    const int64_t whole = (p.in[d] - 1) * p.stride[d] + more + p.span(d);  // without padding
    const bool same = window_.auto_pad() == "SAME_UPPER" || window_.auto_pad() == "SAME_LOWER";
    if (output_shape_.empty() && !same) {
      const Window::Padding pads = window_.pads(i);
      p.pad[d] = pads.begin;
      p.out[d] = whole - pads.begin - pads.end;
      return;
    }
    const int64_t wanted = output_shape_.empty() ? p.in[d] * p.stride[d] : output_shape_[i];
    const Window::Padding padding = window_.halves(std::max<int64_t>(whole - wanted, 0));
    p.pad[d] = padding.begin;
    p.out[d] = output_shape_.empty() ? whole - padding.begin - padding.end : wanted;
  }

  std::vector<int64_t> output_padding_, output_shape_;
};

std::string refuse_conv(const GraphNode& node) {
  const auto& x = node.inputs().front().shape;
  if (!x || x->rank() < 3 || x->rank() > 2 + gpu::kSpatialAxes) return "only one to three spatial axes";
  return refuse_mixed_floats(node);
}

std::string refuse_conv_transpose(const GraphNode& node) {
  // Which of the two holds is not said.
  if (node.find_string("auto_pad").value_or("NOTSET") != "NOTSET" && node.find_ints("pads")) {
    return "auto_pad and pads";
  }
  const std::string why = refuse_conv(node);
  if (!why.empty()) return why;
  // Old exporters give the whole shape.
  const auto shape = node.find_ints("output_shape");
  const size_t axes = node.inputs().front().shape->rank() - 2;
  return shape && !shape->empty() && shape->size() != axes ? "output_shape is not that of the spatial axes"
                                                           : "";
}

}  // namespace

void add_convolutions(std::vector<Operator>& table) {
  add(table, "Conv", 1, 22, [](const Attributes& a) {
    return std::make_unique<Conv>(a);
  }).refused(refuse_conv);
  add(table, "ConvTranspose", 1, 22, [](const Attributes& a) {
    return std::make_unique<ConvTranspose>(a);
  }).refused(refuse_conv_transpose);
}

}  // namespace graphopt::ep
