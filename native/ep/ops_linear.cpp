// MatMul, Gemm and Conv: the vendor's libraries where they are installed, else kernels of our own.
#include <algorithm>

#include "abi/error.h"
#include "ep/operators.h"
#include "gpu/elementwise_plan.h"
#include "gpu/gemm_plan.h"
#include "gpu/libraries.h"
#include "gpu/strided_copy_plan.h"

namespace graphopt::ep {
namespace {

using abi::Error;
using abi::GraphNode;
using abi::OptionalAttributes;
using gpu::GemmProblem;

void multiply(Execution& e, const GemmProblem& p, const Tensor& a, const Tensor& b, void* y) {
  const bool half = a.type == ElementType::kHalf;
  if (p.M * p.N * p.batch.elements() == 0) return;
  if (gpu::Blas* blas = p.K > 0 ? gpu::blas(e.device()) : nullptr) {
    blas->gemm(p, half, a.data, b.data, y, e.stream());
  } else {
    e.run(gpu::gemm_plan(p, half), {a.data, b.data}, {y});
  }
}

// y = x, repeated along its axes of size 1.
void broadcast(Execution& e, const void* x, const Shape& from, bool half, const Shape& to, void* y) {
  gpu::ElementwiseProblem p;
  p.a = from;
  p.y = to;
  e.run(gpu::elementwise_plan(p, half, aligned({x, y})), {x}, {y});
}

class MatMul final : public OpKernel {
 public:
  void run(Execution& e) const override {
    const Tensor &a = e.input(0), &b = e.input(1);
    // A vector is a matrix with one row, or one column, that the result lacks.
    const bool row = a.shape.rank() == 1, column = b.shape.rank() == 1;
    if (a.shape.rank() == 0 || b.shape.rank() == 0) throw Error("A and B must have rank 1 or more");
    const Shape as = row ? Shape{1, a.shape[0]} : a.shape, bs = column ? Shape{b.shape[0], 1} : b.shape;
    GemmProblem p;
    p.M = as[as.rank() - 2];
    p.K = as[as.rank() - 1];
    p.N = bs[bs.rank() - 1];
    if (bs[bs.rank() - 2] != p.K) {
      throw Error("A " + a.shape.text() + " and B " + b.shape.text() + " do not fit");
    }
    const Shape a_batch = leading(as), b_batch = leading(bs);
    p.batch = gpu::broadcast_shape(a_batch, b_batch);
    Shape y(p.batch.rank() + (row ? 0 : 1) + (column ? 0 : 1));
    std::copy(p.batch.data(), p.batch.data() + p.batch.rank(), y.data());
    size_t d = p.batch.rank();
    if (!row) y[d++] = p.M;
    if (!column) y[d++] = p.N;
    p.a_batch = scaled(gpu::broadcast(a_batch, p.batch), p.M * p.K);
    p.b_batch = scaled(gpu::broadcast(b_batch, p.batch), p.K * p.N);
    if (b_batch.elements() == 1 &&
        a_batch.elements() == p.batch.elements()) {  // one B: all rows in one product
      p.M *= a_batch.elements();
      p.batch = Shape();
      p.a_batch.clear();
      p.b_batch.clear();
    }
    multiply(e, p, a, b, e.output(0, y));
  }

 private:
  static Shape leading(const Shape& s) {
    Shape result(s.rank() - 2);
    std::copy(s.data(), s.data() + result.rank(), result.data());
    return result;
  }
  static std::vector<int64_t> scaled(std::vector<int64_t> strides, int64_t factor) {
    for (int64_t& s : strides) s *= factor;
    return strides;
  }
};

class Gemm final : public OpKernel {
 public:
  explicit Gemm(const OptionalAttributes& a)
      : alpha_(a.find_float("alpha").value_or(1.0f)),
        beta_(a.find_float("beta").value_or(1.0f)),
        transpose_a_(a.find_int("transA").value_or(0) != 0),
        transpose_b_(a.find_int("transB").value_or(0) != 0) {}

  void run(Execution& e) const override {
    const Tensor &a = e.input(0), &b = e.input(1);
    if (a.shape.rank() != 2 || b.shape.rank() != 2) throw Error("A and B must be matrices");
    GemmProblem p;
    p.transpose_a = transpose_a_;
    p.transpose_b = transpose_b_;
    p.M = a.shape[transpose_a_ ? 1 : 0];
    p.K = a.shape[transpose_a_ ? 0 : 1];
    p.N = b.shape[transpose_b_ ? 0 : 1];
    if (b.shape[transpose_b_ ? 1 : 0] != p.K) {
      throw Error("A " + a.shape.text() + " and B " + b.shape.text() + " do not fit");
    }
    p.alpha = alpha_;
    const Shape shape = {p.M, p.N};
    void* y = e.output(0, shape);
    if (e.has_input(2) && shape.elements() > 0) {
      p.beta = beta_;
      broadcast(e, e.input(2).data, e.input(2).shape, a.type == ElementType::kHalf, shape, y);
    }
    multiply(e, p, a, b, y);
  }

 private:
  float alpha_, beta_;
  bool transpose_a_, transpose_b_;
};

// Of one or two spatial axes.
class Conv final : public OpKernel {
 public:
  explicit Conv(const OptionalAttributes& a)
      : padding_(a.find_string("auto_pad").value_or("NOTSET")),
        strides_(a.find_ints("strides").value_or(std::vector<int64_t>())),
        dilations_(a.find_ints("dilations").value_or(std::vector<int64_t>())),
        pads_(a.find_ints("pads").value_or(std::vector<int64_t>())),
        groups_(a.find_int("group").value_or(1)) {}

  void run(Execution& e) const override {
    const Tensor &x = e.input(0), &w = e.input(1);
    const size_t axes = x.shape.rank() - 2;
    if (x.shape.rank() < 3 || axes > 2 || w.shape.rank() != x.shape.rank()) {
      throw Error("only one and two spatial axes");
    }
    require_sizes(axes, strides_, 1);
    require_sizes(axes, dilations_, 1);
    require_sizes(2 * axes, pads_, 0);
    if (groups_ < 1) throw Error("group must be 1 or more");
    gpu::ConvNdProblem p;
    p.N = x.shape[0];
    p.groups = groups_;
    p.C = w.shape[1];
    p.M = w.shape[0] / groups_;
    if (p.C * groups_ != x.shape[1] || p.M * groups_ != w.shape[0]) {
      throw Error("the channels of X " + x.shape.text() + " and W " + w.shape.text() + " do not fit");
    }
    int64_t in[2] = {1, 1}, out[2] = {1, 1};
    for (size_t i = 0; i < axes; ++i) {
      const size_t d = 2 - axes + i;
      in[d] = x.shape[2 + i];
      p.kernel[d] = w.shape[2 + i];
      p.stride[d] = strides_.empty() ? 1 : strides_[i];
      p.dilation[d] = dilations_.empty() ? 1 : dilations_[i];
      const int64_t span = (p.kernel[d] - 1) * p.dilation[d] + 1;
      if (padding_ == "NOTSET") {
        p.pad[d] = pads_.empty() ? 0 : pads_[i];
        p.pad_end[d] = pads_.empty() ? 0 : pads_[axes + i];
      } else if (padding_ != "VALID") {
        const int64_t total =
            std::max<int64_t>(((in[d] + p.stride[d] - 1) / p.stride[d] - 1) * p.stride[d] + span - in[d], 0);
        p.pad[d] = padding_ == "SAME_UPPER" ? total / 2 : total - total / 2;
        p.pad_end[d] = total - p.pad[d];
      }
      const int64_t free = in[d] + p.pad[d] + p.pad_end[d] - span;
      if (free < 0) throw Error("the kernel is larger than the padded input");
      out[d] = free / p.stride[d] + 1;
    }
    p.H = in[0];
    p.W = in[1];
    p.OH = out[0];
    p.OW = out[1];
    p.has_bias = e.has_input(2);
    if (p.has_bias && e.input(2).shape.elements() != w.shape[0]) {
      throw Error("B " + e.input(2).shape.text() + " does not have one number for each output channel");
    }
    Shape y = x.shape;
    y[1] = w.shape[0];
    for (size_t i = 0; i < axes; ++i) y[2 + i] = out[2 - axes + i];
    void* result = e.output(0, y);
    if (y.elements() == 0) return;
    const void* bias = p.has_bias ? e.input(2).data : nullptr;
    const bool half = x.type == ElementType::kHalf;
    if (is_pointwise(p)) {
      multiply_pixels(e, p, x, w, bias, result);
      return;
    }
    const bool even = p.pad[0] == p.pad_end[0] && p.pad[1] == p.pad_end[1];
    if (gpu::Dnn* dnn = even && x.shape.elements() > 0 ? gpu::dnn(e.device()) : nullptr) {
      const Scratch workspace = e.scratch(dnn->conv_workspace(p, half, e.stream()));
      dnn->conv(p, half, x.data, w.data, bias, result, workspace.data(), e.stream());
      return;
    }
    e.run(gpu::conv_plan(p, half), {x.data, w.data, bias}, {result});
  }

 private:
  static bool is_pointwise(const gpu::ConvNdProblem& p) {
    for (size_t d = 0; d < 2; ++d) {
      if (p.kernel[d] != 1 || p.pad[d] != 0 || p.pad_end[d] != 0) return false;
    }
    return p.groups == 1;
  }

  // Y[n] = W X[n] + b over the pixels that the strides leave. The libraries' convolutions come to the same
  // product, by way of more work on the host than the product of one image takes on the device.
  static void multiply_pixels(Execution& e, const gpu::ConvNdProblem& conv, const Tensor& x, const Tensor& w,
                              const void* bias, void* y) {
    GemmProblem p;
    p.M = conv.M;
    p.K = conv.C;
    p.N = conv.OH * conv.OW;
    p.batch = {conv.N};
    p.a_batch = {0};
    p.b_batch = {p.K * p.N};
    if (bias != nullptr) {
      p.beta = 1;
      broadcast(e, bias, {1, p.M, 1}, x.type == ElementType::kHalf, {conv.N, p.M, p.N}, y);
    }
    if (conv.OH == conv.H && conv.OW == conv.W) return multiply(e, p, w, x, y);
    gpu::StridedCopy copy;
    copy.shape = {conv.N * conv.C, conv.OH, conv.OW};
    copy.x_strides = {conv.H * conv.W, conv.stride[0] * conv.W, conv.stride[1]};
    copy.y_strides = {p.N, conv.OW, 1};
    copy.bytes = x.type == ElementType::kHalf ? 2 : 4;
    const Scratch pixels = e.scratch(static_cast<size_t>(copy.shape.elements() * copy.bytes));
    e.run(gpu::strided_copy_plan(copy, aligned({x.data, pixels.data()})), {x.data}, {pixels.data()});
    multiply(e, p, w, Tensor{pixels.data(), x.type, {conv.N, conv.C, p.N}}, y);
  }

  std::string padding_;
  std::vector<int64_t> strides_, dilations_, pads_;
  int64_t groups_;
};

std::string refuse_conv(const GraphNode& node) {
  const auto& x = node.inputs().front().shape;
  if (!x || x->rank() < 3 || x->rank() > 4) return "only one and two spatial axes";
  return refuse_mixed_floats(node);
}

}  // namespace

void add_linear(std::vector<Operator>& table) {
  const auto floats = [](const GraphNode& node) { return refuse_mixed_floats(node); };
  add(table, "MatMul", 1, 13, [](const OptionalAttributes&) {
    return std::make_unique<MatMul>();
  }).refused(floats);
  add(table, "Gemm", 7, 13, [](const OptionalAttributes& a) {
    return std::make_unique<Gemm>(a);
  }).refused(floats);
  add(table, "Conv", 1, 22, [](const OptionalAttributes& a) {
    return std::make_unique<Conv>(a);
  }).refused(refuse_conv);
}

}  // namespace graphopt::ep
