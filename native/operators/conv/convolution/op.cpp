// Conv and ConvTranspose of one to three spatial axes: the vendor's library where it is installed and takes
// them, else kernels of our own.
#include "operators/conv/convolution/op.h"

#include <algorithm>

#include "device/libraries/libraries.h"
#include "operators/conv/fused_conv/op.h"
#include "operators/conv/fused_conv_transpose/op.h"
#include "operators/elementwise/elementwise/op.h"
#include "operators/kernel_bases.h"
#include "operators/matmul/linear/op.h"
#include "operators/matmul/matmul/gemm_call.h"
#include "operators/matmul/matmul/op.h"
#include "operators/measured.h"
#include "operators/movement/movement/op.h"
#include "operators/normalization/scale_shift/op.h"
#include "operators/window.h"

namespace graphopt {
namespace {

// One node's convolution.
struct ConvolutionWork {
  ConvolutionProblem p;
  bool half;
  const Call& call;
  Program& program;
  gpu::Device& device;
  size_t library_bytes = 0;

  // The bias is input 2 if there is one.
  Ref bias() const { return p.has_bias ? Ref::input(2) : Ref(); }
};

// Why it is not a product of pixels, or null. An output whose pixel is beyond the input reads padding.
const char* refuse_unless_pointwise(const ConvolutionProblem& p) {
  for (size_t d = 0; d < gpu::kSpatialAxes; ++d) {
    if (p.kernel[d] != 1 || p.pad[d] != 0 || (p.out[d] - 1) * p.stride[d] >= p.in[d]) {
      return "it is no product of pixels";
    }
  }
  return !p.transposed && p.groups == 1 && p.C > 0 ? nullptr : "it is no product of pixels";
}

// Y[n] = W X[n] + b over the pixels that the strides leave. The libraries' convolutions come to the same
// product, by way of more work on the host than the product of one image takes on the device.
void plan_pixels(ConvolutionWork& work, void (*multiply)(GemmCall&)) {
  const ConvolutionProblem& conv = work.p;
  gpu::GemmProblem p;
  p.M = conv.M;
  p.K = conv.C;
  p.N = conv.out_size();
  p.batch = {conv.N};
  p.a_batch = {0};
  p.b_batch = {p.K * p.N};
  if (conv.has_bias) {
    p.beta = 1;
    work.program.launch(gpu::broadcast_plan({1, p.M, 1}, {conv.N, p.M, p.N}, work.half, work.call.aligned()),
                        {work.bias()}, {Ref::output(0)});
  }
  Ref pixels = Ref::input(0);
  if (conv.in != conv.out) {
    gpu::StridedCopy copy;
    copy.shape = {conv.N * conv.C, conv.out[0], conv.out[1], conv.out[2]};
    copy.x_strides = {conv.in_size(), conv.stride[0] * conv.in[1] * conv.in[2], conv.stride[1] * conv.in[2],
                      conv.stride[2]};
    copy.y_strides = {p.N, conv.out[1] * conv.out[2], conv.out[2], 1};
    copy.bytes = work.half ? 2 : 4;
    pixels = work.program.reserve(copy.shape.elements() * copy.bytes);
    work.program.launch(gpu::strided_copy_plan(copy, work.call.aligned()), {Ref::input(0)}, {pixels});
  }
  GemmCall product{std::move(p), work.half,     work.call, work.program,
                   work.device,  Ref::input(1), pixels,    Ref::output(0)};
  multiply(product);
}

// `why` the convolution is no product; else why the library takes none.
template <class AnyWork>
const char* refuse_by_library(AnyWork& work, const char* why) {
  return why != nullptr ? why : gpu::blas(work.device, work.call.libraries).on(work.call.stream).why_not();
}

const char* refuse_pixels_by_library(ConvolutionWork& work) {
  return refuse_by_library(work, refuse_unless_pointwise(work.p));
}
void plan_pixels_by_library(ConvolutionWork& work) { plan_pixels(work, plan_library); }

const char* refuse_windows(ConvolutionWork& work) {
  const ConvolutionProblem& p = work.p;
  if (p.transposed) return "it is transposed";
  return p.in[0] == 1 && p.kernel[0] == 1 && p.out[0] == 1 ? nullptr : "it has three axes";
}

// A bias and a stride cost a product of pixels one more launch each, windows none. Their product is not split, so that
// they take what fills the device (docs/measurements/gpu_h200.md, Implementations measured).
const char* refuse_pixels(ConvolutionWork& work) {
  const ConvolutionProblem& p = work.p;
  const char* why = refuse_unless_pointwise(p);
  if (why != nullptr || (!p.has_bias && p.in == p.out) || refuse_windows(work) != nullptr) return why;
  const gpu::DeviceFacts& facts = work.device.facts();
  const int64_t pixels = p.N * p.out_size();
  const gpu::StridedTiling tile = gpu::choose_strided(p.M, pixels, 1, work.half, facts, std::nullopt);
  const int64_t tiles = gpu::divide_up(p.M, tile.m) * gpu::divide_up(pixels, tile.n);
  return tiles >= facts.compute_units ? "it would be more than one launch" : nullptr;
}
void plan_own_pixels(ConvolutionWork& work) { plan_pixels(work, plan_own); }

// A transposed convolution whose windows lie apart, its kernel being its stride, is one product too:
// Z[n] [M taps, pixels of X] = W^T X[n] + b, of which each pixel's taps are then laid out as its window of Y. cuDNN's
// gradients take up to a hundred times as long (docs/measurements/gpu_h200.md, U-Net).
const char* refuse_unless_apart(const ConvolutionProblem& p) {
  constexpr const char* kWhy = "its windows do not lie apart";
  if (!p.transposed || p.groups != 1 || p.C == 0) return kWhy;
  if (p.in[0] != 1 || p.kernel[0] != 1) return "it has three axes";
  if (p.N * p.M * p.out_size() >= int64_t{1} << 31) return "it has too many elements to be laid out";
  for (size_t d = 0; d < gpu::kSpatialAxes; ++d) {
    const bool apart =
        p.kernel[d] == p.stride[d] && p.pad[d] == 0 && (p.dilation[d] == 1 || p.kernel[d] == 1);
    if (!apart || p.out[d] != p.in[d] * p.stride[d]) return kWhy;
  }
  return nullptr;
}

void plan_apart(ConvolutionWork& work, void (*multiply)(GemmCall&)) {
  const ConvolutionProblem& conv = work.p;
  const int64_t bytes = work.half ? 2 : 4, pixels = conv.in_size();
  gpu::GemmProblem p;
  p.M = conv.M * conv.taps();
  p.K = conv.C;
  p.N = pixels;
  p.transpose_a = true;
  p.batch = {conv.N};
  p.a_batch = {0};
  p.b_batch = {p.K * p.N};
  const Ref windows = work.program.reserve(conv.N * p.M * p.N * bytes);
  if (conv.has_bias) {
    p.beta = 1;
    const Shape filters = {1, conv.M, 1}, all = {conv.N, conv.M, conv.taps() * pixels};
    work.program.launch(gpu::broadcast_plan(filters, all, work.half, work.call.aligned()), {work.bias()},
                        {windows});
  }
  GemmCall product{std::move(p), work.half,     work.call,     work.program,
                   work.device,  Ref::input(1), Ref::input(0), windows};
  multiply(product);
  // From [N M, taps, pixels] to [N M, rows, taps of a column, columns, taps of a row].
  const auto &in = conv.in, &taps = conv.kernel;
  gpu::StridedCopy copy;
  copy.shape = {conv.N * conv.M, in[1], taps[1], in[2], taps[2]};
  copy.x_strides = {conv.taps() * pixels, in[2], taps[2] * pixels, 1, pixels};
  copy.y_strides = gpu::contiguous(copy.shape);
  copy.bytes = bytes;
  work.program.launch(gpu::strided_copy_plan(copy, work.call.aligned()), {windows}, {Ref::output(0)});
}

const char* refuse_apart_by_library(ConvolutionWork& work) {
  return refuse_by_library(work, refuse_unless_apart(work.p));
}
void plan_apart_by_library(ConvolutionWork& work) { plan_apart(work, plan_library); }

const char* refuse_apart(ConvolutionWork& work) { return refuse_unless_apart(work.p); }
void plan_own_apart(ConvolutionWork& work) { plan_apart(work, plan_own); }

// Libraries know one padding for both ends of an axis; what is beyond the last window does not matter.
bool pads_evenly(const ConvolutionProblem& p) {
  for (size_t d = 0; d < gpu::kSpatialAxes; ++d) {
    const int64_t from = p.transposed ? p.out[d] : p.in[d], to = p.transposed ? p.in[d] : p.out[d];
    const int64_t free = from + 2 * p.pad[d] - p.span(d);
    if (free < 0 || free / p.stride[d] + 1 != to) return false;
  }
  return true;
}

template <class AnyWork>
const char* refuse_dnn_of(AnyWork& work, const ConvolutionProblem& p, bool half) {
  if (work.call.input(0).shape.elements() == 0) return "X is empty";
  if (!pads_evenly(p)) return "the padding differs at the ends of an axis";
  const auto dnn = gpu::dnn(work.device, work.call.libraries).on(work.call.stream);
  if (dnn.handle == nullptr) return dnn.why;
  if (p.act.kind != ActivationKind::kNone && !dnn.handle->has_relu()) return "it has no activations";
  const char* why = nullptr;
  const auto bytes = dnn.handle->conv_workspace(p, half, why);
  if (!bytes) return why;
  work.library_bytes = *bytes;
  return nullptr;
}

template <class AnyWork>
void plan_dnn_of(AnyWork& work, const ConvolutionProblem& p, bool half, Ref bias, Ref residual) {
  const Ref workspace =
      work.library_bytes > 0 ? work.program.reserve(static_cast<int64_t>(work.library_bytes)) : Ref();
  work.program.call(
      [handle = gpu::dnn(work.device, work.call.libraries).on(work.call.stream).handle, p,
       half](const Program::Addresses& at) {
        return handle->conv(p, half, at.inputs[0], at.inputs[1], at.inputs[2], at.inputs[3], at.outputs[0],
                            at.outputs[1]);
      },
      {Ref::input(0), Ref::input(1), bias, residual}, {Ref::output(0), workspace});
}

const char* refuse_dnn(ConvolutionWork& work) { return refuse_dnn_of(work, work.p, work.half); }
void plan_dnn(ConvolutionWork& work) { plan_dnn_of(work, work.p, work.half, work.bias(), Ref()); }

void load_dnn(gpu::Device& device, const gpu::LibraryChoices* libraries) { gpu::dnn(device, libraries); }

void plan_windows(ConvolutionWork& work) {
  work.program.launch(gpu::conv_plan(work.p, work.half, work.call.aligned(), work.device.facts()),
                      {Ref::input(0), Ref::input(1), work.bias()}, {Ref::output(0)});
}

void plan_any(ConvolutionWork& work) {
  work.program.launch(gpu::convolution_plan(work.p, work.half), {Ref::input(0), Ref::input(1), work.bias()},
                      {Ref::output(0)});
}

constexpr Implementation<ConvolutionWork> kConvolutions[] = {
    {"pixels by cuBLAS or rocBLAS", refuse_pixels_by_library, plan_pixels_by_library, load_blas},
    {"pixels by a product of our own", refuse_pixels, plan_own_pixels},
    {"cuDNN or MIOpen", refuse_dnn, plan_dnn, load_dnn},
    {"windows by a product of our own", refuse_windows, plan_windows},
    {"a kernel of our own", take_all<ConvolutionWork>, plan_any},
};

constexpr Implementation<ConvolutionWork> kTransposed[] = {
    {"windows that lie apart by cuBLAS or rocBLAS", refuse_apart_by_library, plan_apart_by_library,
     load_blas},
    {"windows that lie apart by a product of our own", refuse_apart, plan_own_apart},
    {"cuDNN or MIOpen", refuse_dnn, plan_dnn, load_dnn},
    {"a kernel of our own", take_all<ConvolutionWork>, plan_any},
};

constexpr size_t kResidual = 3;  // among the inputs, where there is a tail

// One node's convolution in channels last, with all that follows it.
struct LastWork {
  ConvolutionProblem p;
  const Call& call;
  Program& program;
  gpu::Device& device;
  size_t library_bytes = 0;

  Ref bias() const {
    return p.has_bias ? Ref::input(2) : Ref::held(gpu::constant_vector(device, 0.0f, true, p.y_channels()));
  }
  Ref residual() const { return p.has_residual ? Ref::input(kResidual) : Ref(); }
  int64_t pixels() const { return p.N * p.out_size(); }
  // Y [pixels, M] = X [pixels, C] W^T, with all that follows.
  LinearProblem layer() const {
    LinearProblem layer;
    layer.rows = pixels();
    layer.K = p.C;
    layer.N = p.y_channels();
    layer.has_residual = p.has_residual;
    layer.act = p.act;
    layer.transposed = true;
    return layer;
  }
  // Without what follows it.
  ConvolutionProblem alone() const {
    ConvolutionProblem result = p;
    result.has_bias = result.has_residual = false;
    result.act = {};
    return result;
  }
  // One pass over what the convolution has written.
  void add_tail() {
    if (!p.has_bias && !p.has_residual && p.act.kind == ActivationKind::kNone) return;
    program.launch(gpu::linear_rest_plan(layer(), true, call.aligned()), {Ref(), Ref(), bias(), residual()},
                   {Ref::output(0)});
  }
};

// The pixels of X that the strides leave, one behind another.
Ref gathered_pixels(LastWork& work) {
  const ConvolutionProblem& p = work.p;
  if (p.in == p.out) return Ref::input(0);
  gpu::StridedCopy copy;
  copy.shape = {p.N, p.out[0], p.out[1], p.out[2], p.C};
  copy.x_strides = {p.in_size() * p.C, p.stride[0] * p.in[1] * p.in[2] * p.C, p.stride[1] * p.in[2] * p.C,
                    p.stride[2] * p.C, 1};
  copy.y_strides = gpu::contiguous(copy.shape);
  copy.bytes = 2;
  const Ref pixels = work.program.reserve(copy.shape.elements() * copy.bytes);
  work.program.launch(gpu::strided_copy_plan(copy, work.call.aligned()), {Ref::input(0)}, {pixels});
  return pixels;
}

const char* refuse_last_epilogue(LastWork& work) {
  const char* why = refuse_unless_pointwise(work.p);
  if (why != nullptr) return why;
  if (work.call.alignment < gpu::BlasLt::kAlignment) return "memory is not aligned to 256 bytes";
  const auto blas_lt = gpu::blas_lt(work.device, work.call.libraries).on(work.call.stream);
  if (blas_lt.handle == nullptr) return blas_lt.why;
  const auto bytes = blas_lt.handle->linear_workspace(work.layer(), true);
  if (!bytes) return "it has no such product";
  work.library_bytes = *bytes;
  return nullptr;
}

void plan_last_epilogue(LastWork& work) {
  const Ref pixels = gathered_pixels(work);
  const Ref workspace =
      work.library_bytes > 0 ? work.program.reserve(static_cast<int64_t>(work.library_bytes)) : Ref();
  work.program.call(
      [handle = gpu::blas_lt(work.device, work.call.libraries).on(work.call.stream).handle,
       layer = work.layer()](const Program::Addresses& at) {
        return handle->linear(layer, true, at.inputs[0], at.inputs[1], at.inputs[2], at.inputs[3],
                              at.outputs[0], at.outputs[1]);
      },
      {pixels, Ref::input(1), work.bias(), work.residual()}, {Ref::output(0), workspace});
}

const char* refuse_last_pixels(LastWork& work) {
  return refuse_by_library(work, refuse_unless_pointwise(work.p));
}

void plan_last_pixels(LastWork& work) {
  GemmCall product{gpu::linear_product(work.layer()),
                   true,
                   work.call,
                   work.program,
                   work.device,
                   gathered_pixels(work),
                   Ref::input(1),
                   Ref::output(0)};
  plan_library(product);
  work.add_tail();
}

const char* refuse_dnn_with_relu(LastWork& work) {
  if (work.p.transposed || work.p.act.kind != ActivationKind::kRelu) return "what follows is not Relu";
  return refuse_dnn_of(work, work.p, true);
}
void plan_dnn_with_relu(LastWork& work) { plan_dnn_of(work, work.p, true, work.bias(), work.residual()); }

const char* refuse_last_dnn(LastWork& work) { return refuse_dnn_of(work, work.alone(), true); }
void plan_last_dnn(LastWork& work) {
  plan_dnn_of(work, work.alone(), true, Ref(), Ref());
  work.add_tail();
}

const char* refuse_depthwise(LastWork& work) {
  const ConvolutionProblem& p = work.p;
  if (p.transposed || p.C != 1 || p.M != 1) return "it is not depthwise";
  return work.call.aligned() && p.groups % 8 == 0 ? nullptr : "its pixels are no whole vectors";
}

void plan_depthwise(LastWork& work) {
  work.program.launch(gpu::depthwise_plan(work.p),
                      {Ref::input(0), Ref::input(1), work.bias(), work.residual()}, {Ref::output(0)});
}

const char* refuse_last_own(LastWork& work) {
  const char* why = gpu::refuse_conv_last(work.p, work.device.facts());
  return why == nullptr && !work.call.aligned() ? "memory is not aligned to 16 bytes" : why;
}

const char* refuse_last_own_pixels(LastWork& work) {
  const char* why = refuse_unless_pointwise(work.p);
  if (why != nullptr) return why;
  // The kernel of our own needs no copy of the pixels that a stride leaves.
  return work.p.in != work.p.out && refuse_last_own(work) == nullptr ? "it is no copy of pixels" : nullptr;
}

void plan_last_own_pixels(LastWork& work) {
  const Ref pixels = gathered_pixels(work);
  work.program.launch(gpu::linear_plan(work.layer(), true, work.call.aligned(), work.device.facts()),
                      {pixels, Ref::input(1), work.bias(), work.residual()}, {Ref::output(0)});
}

void plan_last_own(LastWork& work) {
  work.program.launch(gpu::conv_last_plan(work.p, work.device.facts()),
                      {Ref::input(0), Ref::input(1), work.p.has_bias ? work.bias() : Ref(), work.residual()},
                      {Ref::output(0)});
}

// Pixels padded with channels of zeros are whole vectors.
constexpr int64_t kWhole = 8;
ConvolutionProblem of_whole_pixels(ConvolutionProblem p) {
  p.C = gpu::round_up(p.C, kWhole);
  return p;
}

const char* refuse_last_padded(LastWork& work) {
  const ConvolutionProblem& p = work.p;
  if (p.transposed || p.C > kWhole / 2) return "its pixels are too large to be copied";
  constexpr int64_t kLeast = 32;  // columns of the smallest tile
  if (p.M < kLeast) return "its filters are fewer than a tile has";
  const char* why = gpu::refuse_conv_last(of_whole_pixels(p), work.device.facts());
  return why == nullptr && !work.call.aligned() ? "memory is not aligned to 16 bytes" : why;
}

void plan_last_padded(LastWork& work) {
  const ConvolutionProblem p = of_whole_pixels(work.p);
  const auto padded = [&](Ref from, int64_t pixels) {
    gpu::PadProblem pad;
    pad.x = {pixels, work.p.C};
    pad.before = {0, 0};
    pad.after = {0, p.C - work.p.C};
    pad.bytes = 2;
    const Ref to = work.program.reserve(pixels * p.C * pad.bytes);
    work.program.launch(gpu::pad_plan(pad, work.call.aligned()), {from}, {to});
    return to;
  };
  const Ref x = padded(Ref::input(0), p.N * p.in_size()), w = padded(Ref::input(1), p.M * p.taps());
  work.program.launch(gpu::conv_last_plan(p, work.device.facts()),
                      {x, w, p.has_bias ? work.bias() : Ref(), work.residual()}, {Ref::output(0)});
}

// What no library takes goes by way of channels first.
void plan_last_any(LastWork& work) {
  const ConvolutionProblem& p = work.p;
  const int64_t x_channels = p.x_channels(), y_channels = p.y_channels();
  const int64_t w_rows = p.transposed ? x_channels : y_channels, w_channels = p.transposed ? p.M : p.C;
  const auto change = [&](Ref from, int64_t batch, int64_t rows, int64_t columns, Ref to) {
    work.program.launch(gpu::swap_planes_plan(batch, rows, columns, 2, work.call.aligned()), {from}, {to});
  };
  const Ref x = work.program.reserve(p.N * p.in_size() * x_channels * 2),
            w = work.program.reserve(w_rows * w_channels * p.taps() * 2),
            y = work.program.reserve(work.pixels() * y_channels * 2);
  change(Ref::input(0), p.N, p.in_size(), x_channels, x);
  change(Ref::input(1), w_rows, p.taps(), w_channels, w);
  ConvolutionProblem first = work.alone();
  first.channels_last = false;
  gpu::Plan plan = p.transposed ? gpu::convolution_plan(first, true)
                                : gpu::conv_plan(first, true, work.call.aligned(), work.device.facts());
  work.program.launch(std::move(plan), {x, w, Ref()}, {y});
  change(y, p.N, y_channels, p.out_size(), Ref::output(0));
  work.add_tail();
}

constexpr Implementation<LastWork> kConvolutionsLast[] = {
    {"pixels by cuBLASLt or hipBLASLt", refuse_last_epilogue, plan_last_epilogue},
    {"pixels by cuBLAS or rocBLAS, and one more launch", refuse_last_pixels, plan_last_pixels},
    {"depthwise by a kernel of our own", refuse_depthwise, plan_depthwise},
    {"cuDNN", refuse_dnn_with_relu, plan_dnn_with_relu},
    {"cuDNN or MIOpen, and one more launch", refuse_last_dnn, plan_last_dnn},
    {"pixels by a product of our own", refuse_last_own_pixels, plan_last_own_pixels},
    {"a product of our own", refuse_last_own, plan_last_own},
    {"a product of our own, of pixels with more channels", refuse_last_padded, plan_last_padded},
    {"a kernel of our own, between two copies", take_all<LastWork>, plan_last_any},
};

// All that its time depends on but the type of its elements.
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
  // `last`: of two spatial axes, in float16, in channels last.
  Convolution(const Node& node, gpu::Device& device, std::optional<Tail> tail = {}, bool last = false)
      : DeviceKernel(device),
        choice_(node),
        window_(node),
        groups_(node.find_int("group").value_or(1)),
        tail_(tail),
        last_(last) {}

 protected:
  void plan(Call& call, Program& program) const override {
    const Shape xs = channels_first(call.input(0).shape), ws = channels_first(call.input(1).shape);
    const size_t rank = xs.rank(), axes = rank - 2;
    if (rank < 3 || axes > gpu::kSpatialAxes || ws.rank() != rank) {
      throw Error("only one to three spatial axes");
    }
    if (groups_ < 1) throw Error("group must be 1 or more");
    ConvolutionProblem p = problem(xs, ws);
    p.groups = groups_;
    p.has_bias = call.has_input(2);
    p.channels_last = last_;
    if (p.has_bias && call.input(2).shape.elements() != p.y_channels()) {
      throw Error("B " + call.input(2).shape.text() + " does not have one number for each output channel");
    }
    const Shape y =
        window_.fit(xs, ws, p, [this](ConvolutionProblem& to, size_t d, size_t i) { place(to, d, i); });
    set_output(call, 0, last_ ? to_channels_last(y) : y);
    if (y.elements() == 0) return;
    const bool slopes = tail_ && tail_->has_slopes;
    if (tail_ && tail_->has_residual && call.input(kResidual).shape != call.outputs[0].shape) {
      throw Error("the sum " + call.input(kResidual).shape.text() + " + " + call.outputs[0].shape.text() +
                  " has another shape");
    }
    if (slopes && call.input(slopes_input()).shape.elements() != y[1]) {
      throw Error("slopes " + call.input(slopes_input()).shape.text() + " are not one for each of " +
                  std::to_string(y[1]) + " channels");
    }
    const bool has_bias = p.has_bias;
    if (last_) {
      if (slopes) {
        p.has_bias = false;
      } else if (tail_) {
        p.has_residual = tail_->has_residual;
        p.act = tail_->act;
      }
      const int measured = fastest_of(kConvolutionsLast, p, call);
      LastWork work{p, call, program, device_};
      program.implementation = choice_.plan(kConvolutionsLast, work, call, measured);
      if (slopes) add_tail({p.N * p.out_size(), y[1], 1, tail_->has_residual, {}}, has_bias, call, program);
      return;
    }
    if (tail_) p.has_bias = false;
    const int measured = p.transposed ? fastest_of(kTransposed, p, call) : fastest_of(kConvolutions, p, call);
    ConvolutionWork work{p, is_half(call.input(0)), call, program, device_};
    program.implementation = p.transposed ? choice_.plan(kTransposed, work, call, measured)
                                          : choice_.plan(kConvolutions, work, call, measured);
    if (!tail_) return;
    add_tail({y[0], y[1], y.elements(2), tail_->has_residual, tail_->act}, has_bias, call, program);
  }

  template <class AnyWork, size_t n>
  int fastest_of(const Implementation<AnyWork> (&list)[n], const ConvolutionProblem& p,
                 const Call& call) const {
    if (call.measured == nullptr || call.only >= 0) return -1;
    const std::string type = element_type_name(call.input(0).type);
    const std::string aligned = call.aligned() ? "" : ", not aligned";
    return gpu::fastest(*this, text_of(p) + ", " + type + aligned, described(list).names, call);
  }

  Shape channels_first(const Shape& s) const { return last_ ? to_channels_first(s) : s; }

  // One pass over what the convolution has written, in place of one for the bias, one for the sum and one for
  // the activation. `p`: sizes of Y, and the tail.
  void add_tail(const ScaleShiftProblem& p, bool has_bias, const Call& call, Program& program) const {
    const bool half = is_half(call.input(0)), slopes = tail_->has_slopes;
    const auto each = [&](float value) { return Ref::held(gpu::constant_vector(device_, value, half, p.C)); };
    const auto plan = slopes ? gpu::shift_prelu_plan : gpu::scale_shift_plan;
    program.launch(plan(p, half, call.aligned()),
                   {Ref::output(0), slopes ? Ref::input(slopes_input()) : each(1.0f),
                    has_bias ? Ref::input(2) : each(0.0f), p.has_residual ? Ref::input(kResidual) : Ref()},
                   {Ref::output(0)});
  }

  // Of a tail with PRelu.
  size_t slopes_input() const { return kResidual + (tail_->has_residual ? 1 : 0); }

  // Sets C and M, and throws Error where W's do not divide into the groups.
  virtual ConvolutionProblem problem(const Shape& x, const Shape& w) const = 0;
  virtual void place(ConvolutionProblem& p, size_t d, size_t i) const = 0;

  Choice choice_;
  Window window_;
  int64_t groups_;
  std::optional<Tail> tail_;
  bool last_;
};

class Conv : public Convolution {
 public:
  using Convolution::Convolution;
  static Implementations implementations() { return described(kConvolutions); }

 private:
  ConvolutionProblem problem(const Shape&, const Shape& w) const override {
    ConvolutionProblem p;
    p.C = w[1];
    p.M = w[0] / groups_;
    if (p.M * groups_ != w[0]) throw Error("W " + w.text() + " does not divide into the groups");
    return p;
  }

  void place(ConvolutionProblem& p, size_t d, size_t i) const override { window_.place(p, d, i); }
};

class ConvTranspose : public Convolution {
 public:
  ConvTranspose(const Node& node, gpu::Device& device, std::optional<Tail> tail = {}, bool last = false)
      : Convolution(node, device, tail, last),
        output_padding_(node.find_ints("output_padding").value_or(std::vector<int64_t>())),
        output_shape_(node.find_ints("output_shape").value_or(std::vector<int64_t>())) {}
  static Implementations implementations() { return described(kTransposed); }

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

// FusedConv[Add][act] is a Conv with its tail, FusedConvTranspose[Add][act] a ConvTranspose.
template <class Op, class Plain>
class WithTail final : public Plain {
 public:
  WithTail(Op op, const Node& node, gpu::Device& device, bool last = false)
      : Plain(node, device, tail_of(op, node), last) {}

 private:
  static Tail tail_of(Op& op, const Node& node) {
    op.read(node);
    return op.tail();
  }
};

using FusedConvGpu = WithTail<FusedConvOp, Conv>;
using FusedConvTransposeGpu = WithTail<FusedConvTransposeOp, ConvTranspose>;

// The rank of input and weights; 0 when neither tells: behind an If whose bodies give different ranks.
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
  // Which of the two holds is not said.
  if (node.find_string("auto_pad").value_or("NOTSET") != "NOTSET" && node.find_ints("pads")) {
    return "auto_pad and pads";
  }
  const std::string why = refuse_conv(node);
  if (!why.empty()) return why;
  // Old exporters give the whole shape.
  const auto shape = node.find_ints("output_shape");
  const size_t axes = rank_of(node) - 2;
  return shape && !shape->empty() && shape->size() != axes ? "output_shape is not that of the spatial axes"
                                                           : "";
}

// A product of pixels is as good in channels first, for one image.
Layout layout_of(const Node& node) {
  const auto& w = node.inputs[1].shape;
  const bool pointwise = w && w->rank() == kLayoutRank && (*w)[2] == 1 && (*w)[3] == 1;
  const bool transposed = node.op.find("ConvTranspose") != std::string::npos;
  return pointwise && !transposed ? Layout::kFollows : Layout::kLast;
}

}  // namespace

void add_convolution(Kernels& kernels) {
  kernels.add_onnx<Conv>("Conv", 1, 22).refused(refuse_conv).chooses(Conv::implementations()).lies(layout_of);
  kernels.takes_tail<Conv>(kResidual);
  kernels.has_channels_last<Conv>();
  kernels.add_gpu<FusedConvOp, FusedConvGpu>(Where::kProvider);
  kernels.have_channels_last<FusedConvOp, FusedConvGpu>(layout_of);
  kernels.add_onnx<ConvTranspose>("ConvTranspose", 1, 22)
      .refused(refuse_conv_transpose)
      .chooses(ConvTranspose::implementations())
      .lies(layout_of);
  kernels.takes_tail<ConvTranspose>(kResidual);
  kernels.has_channels_last<ConvTranspose>();
  kernels.add_gpu<FusedConvTransposeOp, FusedConvTransposeGpu>(Where::kProvider);
  kernels.have_channels_last<FusedConvTransposeOp, FusedConvTransposeGpu>(layout_of);
}

}  // namespace graphopt
