// Convolutions on a GPU: by the vendors' libraries and by built-in kernels.
#include "operators/conv/convolution/implementations.h"

#include "device/libraries/libraries.h"
#include "operators/conv/convolution/op.h"
#include "operators/elementwise/elementwise/op.h"
#include "operators/matmul/linear/linear_call.h"
#include "operators/matmul/linear/op.h"
#include "operators/matmul/matmul/gemm_call.h"
#include "operators/matmul/matmul/op.h"
#include "operators/movement/movement/op.h"

namespace graphopt {

Ref ConvolutionWork::bias_or_zeros() const {
  return p.has_bias ? bias() : Ref::owned(gpu::constant_vector(device(), 0.0f, true, p.y_channels()));
}

LinearProblem ConvolutionWork::layer() const {
  LinearProblem layer;
  layer.rows = pixels();
  layer.K = p.C;
  layer.N = p.y_channels();
  layer.has_residual = p.has_residual;
  layer.act = p.act;
  layer.transposed = true;
  return layer;
}

ConvolutionProblem ConvolutionWork::without_epilogue() const {
  ConvolutionProblem result = p;
  result.has_bias = result.has_residual = false;
  result.act = {};
  return result;
}

void ConvolutionWork::add_tail() {
  if (!p.has_bias && !p.has_residual && p.act.kind == ActivationKind::kNone) return;
  program.launch(gpu::linear_epilogue_plan(layer(), true, call.aligned()),
                 {Ref(), Ref(), bias_or_zeros(), residual()}, {Ref::output(0)});
}

namespace {

// Returns why p is not a pointwise convolution, or null. Such a convolution must not read padding.
const char* refuse_unless_pointwise(const ConvolutionProblem& p) {
  for (size_t d = 0; d < gpu::kSpatialAxes; ++d) {
    if (p.kernel[d] != 1 || p.pad[d] != 0 || (p.out[d] - 1) * p.stride[d] >= p.in[d]) {
      return "not a pointwise convolution";
    }
  }
  return !p.transposed && p.groups == 1 && p.C > 0 ? nullptr : "not a pointwise convolution";
}

// Returns a contiguous copy of the pixels of X that the strides select, or X itself if they select all pixels.
Ref gathered_pixels(ConvolutionWork& work) {
  const ConvolutionProblem& p = work.p;
  if (p.in == p.out) return Ref::input(0);
  const int64_t C = p.channels_last ? p.C : 1, column = p.in[2] * C;
  const gpu::StridedCopy copy = gpu::copy_to(
      {p.N * p.C / C, p.out[0], p.out[1], p.out[2], C},
      {p.in_size() * C, p.stride[0] * p.in[1] * column, p.stride[1] * column, p.stride[2] * C, 1},
      work.half ? 2 : 4);
  const Ref pixels = work.program.reserve(copy.shape.elements() * copy.bytes);
  work.program.launch(gpu::strided_copy_plan(copy, work.call.aligned()), {Ref::input(0)}, {pixels});
  return pixels;
}

// Returns the GEMMs that multiply one matrix of M rows by each image.
gpu::GemmProblem gemm_of_images(int64_t M, int64_t K, int64_t pixels, int64_t images) {
  gpu::GemmProblem p;
  p.M = M;
  p.K = K;
  p.N = pixels;
  p.batch = {images};
  p.a_batch = {0};
  p.b_batch = {K * pixels};
  return p;
}

// A GEMM for each image n: Y[n] = W X[n] + b, over the pixels that the strides select. The libraries' convolutions
// compute the same, but their work on the host takes longer than the GEMM of one image on the device.
void plan_pointwise(ConvolutionWork& work, void (*multiply)(GemmCall&)) {
  const ConvolutionProblem& conv = work.p;
  gpu::GemmProblem p = gemm_of_images(conv.M, conv.C, conv.out_size(), conv.N);
  if (conv.has_bias) {
    p.beta = 1;
    work.program.launch(gpu::broadcast_plan({1, p.M, 1}, {conv.N, p.M, p.N}, work.half, work.call.aligned()),
                        {work.bias()}, {Ref::output(0)});
  }
  const Ref pixels = gathered_pixels(work);
  GemmCall gemm{{std::move(p), work.half, work.call, work.program}, Ref::input(1), pixels, Ref::output(0)};
  multiply(gemm);
}

// Returns `why` if it is not null; otherwise why the library is unavailable, or null.
const char* refuse_by_library(ConvolutionWork& work, const char* why) {
  return why != nullptr ? why : gpu::blas(work.device(), work.call.libraries).on(work.call.stream).why_not();
}

// A library would need another launch for the bias, and its tiles have more rows than there are filters.
const char* refuse_few_channels(ConvolutionWork& work) {
  const char* why = refuse_unless_pointwise(work.p);
  return why != nullptr ? why : gpu::refuse_few_channels(work.p);
}

void plan_few_channels(ConvolutionWork& work) {
  work.program.launch(gpu::few_channels_plan(work.p, work.half, work.call.aligned(), work.facts()),
                      {Ref::input(0), Ref::input(1), work.bias()}, {Ref::output(0)});
}

const char* refuse_pointwise_by_library(ConvolutionWork& work) {
  return refuse_by_library(work, refuse_unless_pointwise(work.p));
}
void plan_pointwise_by_library(ConvolutionWork& work) { plan_pointwise(work, plan_gemm_by_library); }

const char* refuse_implicit_gemm(ConvolutionWork& work) {
  const ConvolutionProblem& p = work.p;
  if (p.transposed) return "a transposed convolution";
  return p.in[0] == 1 && p.kernel[0] == 1 && p.out[0] == 1 ? nullptr : "three spatial axes";
}

// A bias and a stride each add a launch to the pointwise GEMM, but not to the implicit GEMM. The implicit GEMM has no
// split-K. It is therefore preferred only if its tiles fill the device (docs/measurements/gpu_h200.md, Implementations
// measured).
const char* refuse_built_in_pointwise(ConvolutionWork& work) {
  const ConvolutionProblem& p = work.p;
  const char* why = refuse_unless_pointwise(p);
  if (why != nullptr || (!p.has_bias && p.in == p.out) || refuse_implicit_gemm(work) != nullptr) return why;
  const gpu::DeviceFacts& facts = work.facts();
  const int64_t pixels = p.N * p.out_size();
  const gpu::StridedTiling tile = gpu::choose_strided(p.M, pixels, 1, work.half, facts, std::nullopt);
  const int64_t tiles = gpu::divide_up(p.M, tile.m) * gpu::divide_up(pixels, tile.n);
  return tiles >= facts.compute_units ? "needs more than one launch" : nullptr;
}
void plan_built_in_pointwise(ConvolutionWork& work) { plan_pointwise(work, plan_built_in_gemm); }

// A transposed convolution with disjoint windows (the kernel size equals the stride) is also one GEMM for each image n:
// Z[n] = W^T X[n] + b, with a row for each filter and tap, and a column for each pixel of X. A copy then moves the taps
// of each pixel to its window in Y. cuDNN's backward-data convolution can be much slower
// (docs/measurements/provider_h200.md, U-Net).
const char* refuse_unless_disjoint(const ConvolutionProblem& p) {
  constexpr const char* kWhy = "the windows are not disjoint";
  if (!p.transposed || p.groups != 1 || p.C == 0) return kWhy;
  if (p.in[0] != 1 || p.kernel[0] != 1) return "three spatial axes";
  if (p.N * p.M * p.out_size() >= int64_t{1} << 31) return "too many elements for the copy of the windows";
  for (size_t d = 0; d < gpu::kSpatialAxes; ++d) {
    const bool disjoint =
        p.kernel[d] == p.stride[d] && p.pad[d] == 0 && (p.dilation[d] == 1 || p.kernel[d] == 1);
    if (!disjoint || p.out[d] != p.in[d] * p.stride[d]) return kWhy;
  }
  return nullptr;
}

void plan_disjoint(ConvolutionWork& work, void (*multiply)(GemmCall&)) {
  const ConvolutionProblem& conv = work.p;
  const int64_t bytes = work.half ? 2 : 4, pixels = conv.in_size();
  gpu::GemmProblem p = gemm_of_images(conv.M * conv.taps(), conv.C, pixels, conv.N);
  p.transpose_a = true;
  const Ref windows = work.program.reserve(conv.N * p.M * p.N * bytes);
  if (conv.has_bias) {
    p.beta = 1;
    const Shape filters = {1, conv.M, 1}, all = {conv.N, conv.M, conv.taps() * pixels};
    work.program.launch(gpu::broadcast_plan(filters, all, work.half, work.call.aligned()), {work.bias()},
                        {windows});
  }
  GemmCall gemm{{std::move(p), work.half, work.call, work.program}, Ref::input(1), Ref::input(0), windows};
  multiply(gemm);
  // From [N M, taps, pixels] to [N M, rows, taps of a column, columns, taps of a row].
  const auto &in = conv.in, &taps = conv.kernel;
  const gpu::StridedCopy copy =
      gpu::copy_to({conv.N * conv.M, in[1], taps[1], in[2], taps[2]},
                   {conv.taps() * pixels, in[2], taps[2] * pixels, 1, pixels}, bytes);
  work.program.launch(gpu::strided_copy_plan(copy, work.call.aligned()), {windows}, {Ref::output(0)});
}

const char* refuse_disjoint_by_library(ConvolutionWork& work) {
  return refuse_by_library(work, refuse_unless_disjoint(work.p));
}
void plan_disjoint_by_library(ConvolutionWork& work) { plan_disjoint(work, plan_gemm_by_library); }

const char* refuse_built_in_disjoint(ConvolutionWork& work) { return refuse_unless_disjoint(work.p); }
void plan_built_in_disjoint(ConvolutionWork& work) { plan_disjoint(work, plan_built_in_gemm); }

// Returns whether equal padding at both ends of each axis gives the same result; libraries support no other padding. If
// the given and the equal padding give the same number of windows, the results are equal, because no element beyond the
// last window is read.
bool pads_evenly(const ConvolutionProblem& p) {
  for (size_t d = 0; d < gpu::kSpatialAxes; ++d) {
    const int64_t from = p.transposed ? p.out[d] : p.in[d], to = p.transposed ? p.in[d] : p.out[d];
    const int64_t free = from + 2 * p.pad[d] - p.span(d);
    if (free < 0 || free / p.stride[d] + 1 != to) return false;
  }
  return true;
}

const char* refuse_dnn_for(ConvolutionWork& work, const ConvolutionProblem& p) {
  if (work.call.input(0).shape.elements() == 0) return "X is empty";
  if (!pads_evenly(p)) return "asymmetric padding";
  const auto dnn = gpu::dnn(work.device(), work.call.libraries).on(work.call.stream);
  if (dnn.handle == nullptr) return dnn.why;
  if (p.act.kind != ActivationKind::kNone && !dnn.handle->has_relu()) return "the library has no activations";
  const char* why = nullptr;
  const auto bytes = dnn.handle->conv_workspace(p, work.half, why);
  if (!bytes) return why;
  work.library_bytes = *bytes;
  return nullptr;
}

void plan_dnn_for(ConvolutionWork& work, const ConvolutionProblem& p, Ref bias, Ref residual) {
  work.program.call(
      [handle = gpu::dnn(work.device(), work.call.libraries).on(work.call.stream).handle, p,
       half = work.half](const Program::Addresses& at) {
        return handle->conv(p, half, at.inputs[0], at.inputs[1], at.inputs[2], at.inputs[3], at.outputs[0],
                            at.outputs[1]);
      },
      {Ref::input(0), Ref::input(1), bias, residual}, {Ref::output(0), work.library_workspace()});
}

const char* refuse_dnn(ConvolutionWork& work) { return refuse_dnn_for(work, work.p); }
void plan_dnn(ConvolutionWork& work) { plan_dnn_for(work, work.p, work.bias(), Ref()); }

void load_dnn(gpu::Device& device, const gpu::LibraryChoices* libraries) { gpu::dnn(device, libraries); }

void plan_implicit_gemm(ConvolutionWork& work) {
  work.program.launch(gpu::conv_plan(work.p, work.half, work.call.aligned(), work.facts()),
                      {Ref::input(0), Ref::input(1), work.bias()}, {Ref::output(0)});
}

void plan_direct(ConvolutionWork& work) {
  work.program.launch(gpu::convolution_plan(work.p, work.half), {Ref::input(0), Ref::input(1), work.bias()},
                      {Ref::output(0)});
}

const char* refuse_channels_last_blas_lt(ConvolutionWork& work) {
  const char* why = refuse_unless_pointwise(work.p);
  return why != nullptr ? why
                        : refuse_blas_lt(work.call, work.device(), work.layer(), true, work.library_bytes);
}

void plan_channels_last_blas_lt(ConvolutionWork& work) {
  const Ref pixels = gathered_pixels(work);
  plan_blas_lt(work.call, work.program, work.layer(), true,
               {pixels, Ref::input(1), work.bias_or_zeros(), work.residual(), Ref::output(0)},
               work.library_workspace());
}

const char* refuse_channels_last_pointwise_by_library(ConvolutionWork& work) {
  return refuse_by_library(work, refuse_unless_pointwise(work.p));
}

void plan_channels_last_pointwise_by_library(ConvolutionWork& work) {
  GemmCall gemm{{gpu::linear_gemm(work.layer()), true, work.call, work.program},
                gathered_pixels(work),
                Ref::input(1),
                Ref::output(0)};
  plan_gemm_by_library(gemm);
  work.add_tail();
}

const char* refuse_channels_last_dnn_with_relu(ConvolutionWork& work) {
  if (work.p.transposed) return "a transposed convolution";
  if (work.p.act.kind != ActivationKind::kRelu) return "the activation is not Relu";
  return refuse_dnn_for(work, work.p);
}
void plan_channels_last_dnn_with_relu(ConvolutionWork& work) {
  plan_dnn_for(work, work.p, work.bias_or_zeros(), work.residual());
}

const char* refuse_channels_last_dnn(ConvolutionWork& work) {
  return refuse_dnn_for(work, work.without_epilogue());
}
void plan_channels_last_dnn(ConvolutionWork& work) {
  plan_dnn_for(work, work.without_epilogue(), Ref(), Ref());
  work.add_tail();
}

const char* refuse_depthwise(ConvolutionWork& work) {
  const ConvolutionProblem& p = work.p;
  if (p.transposed || p.C != 1 || p.M != 1) return "not a depthwise convolution";
  return work.call.aligned() ? nullptr : "memory is not aligned to 16 bytes";
}

void plan_depthwise(ConvolutionWork& work) {
  work.program.launch(gpu::depthwise_plan(work.p, work.facts()),
                      {Ref::input(0), Ref::input(1), work.bias_or_zeros(), work.residual()},
                      {Ref::output(0)});
}

const char* refuse_channels_last_implicit_gemm(ConvolutionWork& work) {
  const char* why = gpu::refuse_channels_last_conv(work.p, work.facts());
  return why == nullptr && !work.call.aligned() ? "memory is not aligned to 16 bytes" : why;
}

const char* refuse_channels_last_pointwise(ConvolutionWork& work) {
  const char* why = refuse_unless_pointwise(work.p);
  if (why != nullptr) return why;
  // The implicit GEMM reads the pixels that a stride selects without a copy.
  return work.p.in != work.p.out && refuse_channels_last_implicit_gemm(work) == nullptr
             ? "the implicit GEMM needs no copy of the strided pixels"
             : nullptr;
}

void plan_channels_last_pointwise(ConvolutionWork& work) {
  const Ref pixels = gathered_pixels(work);
  work.program.launch(gpu::linear_plan(work.layer(), true, work.call.aligned(), work.facts()),
                      {pixels, Ref::input(1), work.bias_or_zeros(), work.residual()}, {Ref::output(0)});
}

void plan_channels_last_implicit_gemm(ConvolutionWork& work) {
  work.program.launch(gpu::channels_last_conv_plan(work.p, work.facts()),
                      {Ref::input(0), Ref::input(1), work.bias(), work.residual()}, {Ref::output(0)});
}

constexpr int64_t kVector = 8;  // channels in a vector that the implicit GEMM reads

// Rounds the number of input channels up to full vectors.
ConvolutionProblem with_padded_channels(ConvolutionProblem p) {
  p.C = gpu::round_up(p.C, kVector);
  return p;
}

const char* refuse_channels_last_padded(ConvolutionWork& work) {
  const ConvolutionProblem& p = work.p;
  if (p.transposed || p.C > kVector / 2) return "not a convolution of at most 4 channels";
  constexpr int64_t kLeast = 32;  // columns of the smallest tile
  if (p.M < kLeast) return "fewer filters than a tile has columns";
  const char* why = gpu::refuse_channels_last_conv(with_padded_channels(p), work.facts());
  return why == nullptr && !work.call.aligned() ? "memory is not aligned to 16 bytes" : why;
}

// Pads X and W with channels of zeros.
void plan_channels_last_padded(ConvolutionWork& work) {
  const ConvolutionProblem p = with_padded_channels(work.p);
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
  work.program.launch(gpu::channels_last_conv_plan(p, work.facts()), {x, w, work.bias(), work.residual()},
                      {Ref::output(0)});
}

// The fallback: transposes to channels first, convolves, and transposes back.
void plan_between_transpositions(ConvolutionWork& work) {
  const ConvolutionProblem& p = work.p;
  const int64_t x_channels = p.x_channels(), y_channels = p.y_channels();
  const int64_t w_rows = p.transposed ? x_channels : y_channels, w_channels = p.transposed ? p.M : p.C;
  const auto change = [&](Ref from, int64_t batch, int64_t rows, int64_t columns, Ref to) {
    work.program.launch(gpu::transpose_planes_plan(batch, rows, columns, 2, work.call.aligned()), {from},
                        {to});
  };
  const Ref x = work.program.reserve(p.N * p.in_size() * x_channels * 2),
            w = work.program.reserve(w_rows * w_channels * p.taps() * 2),
            y = work.program.reserve(work.pixels() * y_channels * 2);
  change(Ref::input(0), p.N, p.in_size(), x_channels, x);
  change(Ref::input(1), w_rows, p.taps(), w_channels, w);
  ConvolutionProblem first = work.without_epilogue();
  first.channels_last = false;
  gpu::Plan plan = p.transposed ? gpu::convolution_plan(first, true)
                                : gpu::conv_plan(first, true, work.call.aligned(), work.facts());
  work.program.launch(std::move(plan), {x, w, Ref()}, {y});
  change(y, p.N, y_channels, p.out_size(), Ref::output(0));
  work.add_tail();
}

}  // namespace

const Implementation<ConvolutionWork> kConvolutions[6] = {
    {"pointwise by built-in kernel for few channels", refuse_few_channels, plan_few_channels},
    {"pointwise by cuBLAS or rocBLAS", refuse_pointwise_by_library, plan_pointwise_by_library, load_blas},
    {"pointwise by built-in GEMM", refuse_built_in_pointwise, plan_built_in_pointwise},
    {"cuDNN or MIOpen", refuse_dnn, plan_dnn, load_dnn},
    {"built-in implicit GEMM", refuse_implicit_gemm, plan_implicit_gemm},
    {"built-in direct kernel", accept_all<ConvolutionWork>, plan_direct},
};

const Implementation<ConvolutionWork> kTransposed[4] = {
    {"disjoint windows by cuBLAS or rocBLAS", refuse_disjoint_by_library, plan_disjoint_by_library,
     load_blas},
    {"disjoint windows by built-in GEMM", refuse_built_in_disjoint, plan_built_in_disjoint},
    {"cuDNN or MIOpen", refuse_dnn, plan_dnn, load_dnn},
    {"built-in direct kernel", accept_all<ConvolutionWork>, plan_direct},
};

const Implementation<ConvolutionWork> kConvolutionsChannelsLast[9] = {
    {"pointwise by cuBLASLt or hipBLASLt", refuse_channels_last_blas_lt, plan_channels_last_blas_lt},
    {"pointwise by cuBLAS or rocBLAS, and one more launch", refuse_channels_last_pointwise_by_library,
     plan_channels_last_pointwise_by_library},
    {"built-in depthwise kernel", refuse_depthwise, plan_depthwise},
    {"cuDNN", refuse_channels_last_dnn_with_relu, plan_channels_last_dnn_with_relu},
    {"cuDNN or MIOpen, and one more launch", refuse_channels_last_dnn, plan_channels_last_dnn},
    {"pointwise by built-in GEMM", refuse_channels_last_pointwise, plan_channels_last_pointwise},
    {"built-in channels-last implicit GEMM", refuse_channels_last_implicit_gemm,
     plan_channels_last_implicit_gemm},
    {"built-in channels-last implicit GEMM with padded channels", refuse_channels_last_padded,
     plan_channels_last_padded},
    {"built-in kernel between transpositions", accept_all<ConvolutionWork>, plan_between_transpositions},
};

}  // namespace graphopt
