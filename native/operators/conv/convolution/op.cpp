// Conv and ConvTranspose with one to three spatial axes. A vendor's library computes them if it is installed and
// supports them; otherwise built-in kernels do.
#include "operators/conv/convolution/op.h"

#include <algorithm>

#include "operators/conv/convolution/implementations.h"
#include "operators/conv/fused_conv/op.h"
#include "operators/conv/fused_conv_transpose/op.h"
#include "operators/kernel_bases.h"
#include "operators/measured.h"
#include "operators/normalization/scale_shift/op.h"
#include "operators/window.h"

namespace graphopt {
namespace {

// Returns a text of all properties of the problem that determine the run time. fastest_of() adds the element type and
// the alignment.
std::string text_of(const ConvolutionProblem& p) {
  std::string text = p.transposed ? "ConvTranspose" : "Conv";
  if (p.channels_last) text += " in channels last";
  const auto add = [&](const char* name, std::initializer_list<int64_t> values) {
    text += std::string(" ") + name;
    for (const int64_t value : values) text += " " + std::to_string(value);
  };
  add("of", {p.N, p.groups, p.C, p.M});
  for (const auto& [name, axes] : {std::pair("in", &p.in),
                                   {"out", &p.out},
                                   {"kernel", &p.kernel},
                                   {"stride", &p.stride},
                                   {"dilation", &p.dilation},
                                   {"pad", &p.pad}}) {
    add(name, {(*axes)[0], (*axes)[1], (*axes)[2]});
  }
  add("bias, residual, activation", {p.has_bias, p.has_residual, static_cast<int64_t>(p.act.kind)});
  return text;
}

class Convolution : public gpu::DeviceKernel {
 public:
  // `tail`: the residual and activation to fuse. `channels_last`: two spatial axes, float16, channels last.
  Convolution(const Node& node, gpu::Device& device, std::optional<Tail> tail = {},
              bool channels_last = false)
      : DeviceKernel(device),
        choice_(node),
        window_(node),
        groups_(node.get_int("group", 1)),
        tail_(tail),
        channels_last_(channels_last) {}

 protected:
  void plan(Call& call, Program& program) const override {
    const Shape xs = channels_first(call.input(0).shape), ws = channels_first(call.input(1).shape);
    const size_t rank = xs.rank(), axes = rank - 2;
    throw_if(rank < 3 || axes > gpu::kSpatialAxes || ws.rank() != rank, "only one to three spatial axes");
    throw_if(groups_ < 1, "group must be 1 or more");
    ConvolutionProblem p = problem(xs, ws);
    p.groups = groups_;
    p.has_bias = call.has_input(2);
    p.channels_last = channels_last_;
    if (p.has_bias && call.input(2).shape.elements() != p.y_channels()) {
      throw Error("B ", call.input(2).shape, " does not have one element for each output channel");
    }
    const Shape y =
        window_.fit(xs, ws, p, [this](ConvolutionProblem& to, size_t d, size_t i) { set_axis(to, d, i); });
    set_output(call, 0, channels_last_ ? to_channels_last(y) : y);
    if (y.elements() == 0) return;
    const bool slopes = tail_ && tail_->has_slopes;
    if (tail_ && tail_->has_residual &&
        call.input(ConvolutionWork::kResidual).shape != call.outputs[0].shape) {
      throw Error("the residual ", call.input(ConvolutionWork::kResidual).shape, " and the result ",
                  call.outputs[0].shape, " of the convolution have different shapes");
    }
    if (slopes && call.input(slopes_input()).shape.elements() != y[1]) {
      throw Error("slopes ", call.input(slopes_input()).shape, " must have one element for each of ", y[1],
                  " channels");
    }
    const bool has_bias = p.has_bias;
    if (channels_last_) {
      if (slopes) {
        p.has_bias = false;
      } else if (tail_) {
        p.has_residual = tail_->has_residual;
        p.act = tail_->act;
      }
      const int measured = fastest_of(kConvolutionsChannelsLast, p, call);
      ConvolutionWork work{{p, true, call, program}};
      program.implementation = choice_.plan(kConvolutionsChannelsLast, work, call, measured);
      if (slopes) add_tail({p.N * p.out_size(), y[1], 1, tail_->has_residual, {}}, has_bias, call, program);
      return;
    }
    if (tail_) p.has_bias = false;
    const int measured = p.transposed ? fastest_of(kTransposed, p, call) : fastest_of(kConvolutions, p, call);
    ConvolutionWork work{{p, is_half(call.input(0)), call, program}};
    program.implementation = p.transposed ? choice_.plan(kTransposed, work, call, measured)
                                          : choice_.plan(kConvolutions, work, call, measured);
    if (!tail_) return;
    add_tail({y[0], y[1], y.elements(2), tail_->has_residual, tail_->act}, has_bias, call, program);
  }

  template <size_t n>
  int fastest_of(const Implementation<ConvolutionWork> (&list)[n], const ConvolutionProblem& p,
                 const Call& call) const {
    if (call.measured == nullptr || call.only >= 0) return -1;
    const std::string type = element_type_name(call.input(0).type);
    const std::string aligned = call.aligned() ? "" : ", not aligned";
    return gpu::fastest(*this, text_of(p) + ", " + type + aligned, summarize(list).names, call);
  }

  Shape channels_first(const Shape& s) const { return channels_last_ ? to_channels_first(s) : s; }

  // Applies bias, residual and activation in one pass over Y instead of three. `p`: sizes of Y, and the tail.
  void add_tail(const ScaleShiftProblem& p, bool has_bias, const Call& call, Program& program) const {
    const bool half = is_half(call.input(0)), slopes = tail_->has_slopes;
    const auto each = [&](float value) {
      return Ref::owned(gpu::constant_vector(device_, value, half, p.C));
    };
    const auto plan = slopes ? gpu::shift_prelu_plan : gpu::scale_shift_plan;
    program.launch(plan(p, half, call.aligned()),
                   {Ref::output(0), slopes ? Ref::input(slopes_input()) : each(1.0f),
                    has_bias ? Ref::input(2) : each(0.0f),
                    p.has_residual ? Ref::input(ConvolutionWork::kResidual) : Ref()},
                   {Ref::output(0)});
  }

  // The index of the slopes if the tail is PRelu.
  size_t slopes_input() const { return ConvolutionWork::kResidual + (tail_->has_residual ? 1 : 0); }

  // Returns a problem with C, M and `transposed`. Throws Error if the channels of W do not divide into the groups.
  virtual ConvolutionProblem problem(const Shape& x, const Shape& w) const = 0;
  virtual void set_axis(ConvolutionProblem& p, size_t d, size_t i) const = 0;

  Choice choice_;
  Window window_;
  int64_t groups_;
  std::optional<Tail> tail_;
  bool channels_last_;
};

class Conv : public Convolution {
 public:
  using Convolution::Convolution;
  static Implementations implementations() { return summarize(kConvolutions); }

 private:
  ConvolutionProblem problem(const Shape&, const Shape& w) const override {
    ConvolutionProblem p;
    p.C = w[1];
    p.M = w[0] / groups_;
    throw_if(p.M * groups_ != w[0], "W ", w, " does not divide into the groups");
    return p;
  }

  void set_axis(ConvolutionProblem& p, size_t d, size_t i) const override {
    window_.set_convolution_axis(p, d, i);
  }
};

class ConvTranspose : public Convolution {
 public:
  ConvTranspose(const Node& node, gpu::Device& device, std::optional<Tail> tail = {},
                bool channels_last = false)
      : Convolution(node, device, tail, channels_last),
        output_padding_(node.get_ints("output_padding", {})),
        output_shape_(node.get_ints("output_shape", {})) {}
  static Implementations implementations() { return summarize(kTransposed); }

 private:
  ConvolutionProblem problem(const Shape& x, const Shape& w) const override {
    ConvolutionProblem p;
    p.transposed = true;
    p.C = w[0] / groups_;
    p.M = w[1];
    throw_if(p.C * groups_ != w[0], "W ", w, " does not divide into the groups");
    require_sizes(x.rank() - 2, output_padding_, 0);
    require_sizes(x.rank() - 2, output_shape_, 0);
    return p;
  }

  void set_axis(ConvolutionProblem& p, size_t d, size_t i) const override {
    const int64_t output_padding = output_padding_.empty() ? 0 : output_padding_[i];
    // Size of Y without pads.
    const int64_t unpadded = (p.in[d] - 1) * p.stride[d] + output_padding + p.span(d);
    const bool same = window_.auto_pad() == "SAME_UPPER" || window_.auto_pad() == "SAME_LOWER";
    if (output_shape_.empty() && !same) {
      const Window::Padding pads = window_.pads(i);
      p.pad[d] = pads.begin;
      p.out[d] = unpadded - pads.begin - pads.end;
      return;
    }
    const int64_t wanted = output_shape_.empty() ? p.in[d] * p.stride[d] : output_shape_[i];
    const Window::Padding padding = window_.halves(std::max<int64_t>(unpadded - wanted, 0));
    p.pad[d] = padding.begin;
    p.out[d] = output_shape_.empty() ? unpadded - padding.begin - padding.end : wanted;
  }

  std::vector<int64_t> output_padding_, output_shape_;
};

// FusedConv[Add][act] is a Conv with its tail, FusedConvTranspose[Add][act] is a ConvTranspose with its tail.
template <class Op, class Plain>
class WithTail final : public Plain {
 public:
  WithTail(Op op, const Node& node, gpu::Device& device, bool channels_last = false)
      : Plain(node, device, tail_of(op, node), channels_last) {}

 private:
  static Tail tail_of(Op& op, const Node& node) {
    op.read(node);
    return op.tail();
  }
};

using FusedConvGpu = WithTail<FusedConvOp, Conv>;
using FusedConvTransposeGpu = WithTail<FusedConvTransposeOp, ConvTranspose>;

// The rank of input or weights; 0 if both are unknown, for example after an If with branches of different ranks.
size_t rank_of(const Node& node) {
  for (size_t i = 0; i < 2 && node.has_input(i); ++i) {
    if (node.inputs[i].shape && node.inputs[i].shape->rank() > 0) return node.inputs[i].shape->rank();
  }
  return 0;
}

std::string refuse_conv(const Node& node) {
  const size_t rank = rank_of(node);
  if (rank < 3 || rank > 2 + gpu::kSpatialAxes) return "only one to three spatial axes";
  return refuse_mixed_floats(node);
}

std::string refuse_conv_transpose(const Node& node) {
  // ONNX does not define which of the two attributes takes precedence.
  if (node.get_string("auto_pad", "NOTSET") != "NOTSET" && node.find_ints("pads")) {
    return "auto_pad and pads are both set";
  }
  const std::string why = refuse_conv(node);
  if (!why.empty()) return why;
  // Old exporters include the batch and channel axes in output_shape.
  const auto shape = node.find_ints("output_shape");
  const size_t axes = rank_of(node) - 2;
  return shape && !shape->empty() && shape->size() != axes
             ? "output_shape does not have one size for each spatial axis"
             : "";
}

// A pointwise convolution is a GEMM in channels first and in channels last, and equally fast for one image. Converting
// its operands to channels last would therefore only cost time.
Layout layout_of(const Node& node) {
  const auto& w = node.inputs[1].shape;
  const bool pointwise = w && w->rank() == kLayoutRank && (*w)[2] == 1 && (*w)[3] == 1;
  const bool transposed = node.op.find("ConvTranspose") != std::string::npos;
  return pointwise && !transposed ? Layout::kFollows : Layout::kLast;
}

}  // namespace

void add_convolution(Kernels& kernels) {
  kernels.add_onnx("Conv", 1, 22, kernel<Conv>)
      .refused(refuse_conv)
      .chooses(Conv::implementations())
      .with_layout(layout_of);
  kernels.takes_tail<Conv>(ConvolutionWork::kResidual);
  kernels.has_channels_last(kernel<Conv>);
  kernels.add_gpu<FusedConvOp, FusedConvGpu>(Where::kProvider);
  kernels.have_channels_last<FusedConvOp, FusedConvGpu>(layout_of);
  kernels.add_onnx("ConvTranspose", 1, 22, kernel<ConvTranspose>)
      .refused(refuse_conv_transpose)
      .chooses(ConvTranspose::implementations())
      .with_layout(layout_of);
  kernels.takes_tail<ConvTranspose>(ConvolutionWork::kResidual);
  kernels.has_channels_last(kernel<ConvTranspose>);
  kernels.add_gpu<FusedConvTransposeOp, FusedConvTransposeGpu>(Where::kProvider);
  kernels.have_channels_last<FusedConvTransposeOp, FusedConvTransposeGpu>(layout_of);
}

}  // namespace graphopt
