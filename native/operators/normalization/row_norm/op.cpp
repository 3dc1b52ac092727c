#include "operators/normalization/row_norm/op.h"

#include <algorithm>

#include "operators/elementwise/elementwise/op.h"
#include "operators/kernel_bases.h"

namespace graphopt {
std::vector<RowNormOp> RowNormOp::all() {
  std::vector<RowNormOp> ops;
  for (int kind : {0, 1, 2}) {
    for (int suffixes : {0, 1, 2}) {
      RowNormOp op;
      op.rms_ = kind == 1;
      op.ada_ = kind == 2;
      op.add_ = suffixes >= 1;
      op.sum_ = suffixes == 2;
      ops.push_back(op);
    }
  }
  return ops;
}

std::string RowNormOp::name() const {
  const char* base = rms_ ? "FusedRmsNorm" : ada_ ? "FusedAdaLayerNorm" : "FusedLayerNorm";
  return std::string(base) + (add_ ? "Add" : "") + (sum_ ? "Sum" : "");
}

std::vector<Operand> RowNormOp::inputs() const {
  return std::vector<Operand>(2 + (add_ ? 1 : 0) + (rms_ ? 0 : 1), Operand::kTensor);
}

void RowNormOp::read(const Node& node) { epsilon_ = node.get_float("epsilon"); }

RowNormProblem RowNormOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  throw_if(x.rank() < (ada_ ? 2u : 1u), ada_ ? "X must have rank 2 or more" : "X must have rank 1 or more");
  if (add_) require_same_shape("R", inputs[1], "X", x);
  const int64_t D = x[x.rank() - 1];
  Shape row = {D};
  const size_t gamma = add_ ? 2 : 1, beta = gamma + 1;
  if (ada_) {  // [N, 1, .., D], or [1, 1, .., D] for all images
    row = Shape(x.rank());
    for (size_t i = 0; i < x.rank(); ++i) row[i] = i + 1 == x.rank() ? D : 1;
    if (inputs[gamma].rank() > 0 && inputs[gamma][0] == x[0]) row[0] = x[0];
  }
  require_shape("gamma", inputs[gamma], row);
  if (!rms_) require_shape("beta", inputs[beta], row);
  RowNormProblem p;
  p.D = D;
  p.rows = x.elements(0, x.rank() - 1);
  p.epsilon = epsilon_;
  p.images = ada_ ? std::max<int64_t>(row[0], 1) : 1;
  p.rms = rms_;
  p.has_residual = add_;
  p.writes_sum = sum_;
  return p;
}

std::vector<RowNormWindowsOp> RowNormWindowsOp::all() {
  std::vector<RowNormWindowsOp> ops(3);
  ops[1].add_ = ops[2].add_ = true;
  ops[2].into_ = false;
  return ops;
}

std::string RowNormWindowsOp::name() const {
  return std::string("FusedLayerNorm") + (add_ ? "AddSum" : "") + (into_ ? "IntoWindows" : "FromWindows");
}

std::vector<Operand> RowNormWindowsOp::inputs() const {
  return std::vector<Operand>(add_ ? 4 : 3, Operand::kTensor);
}

void RowNormWindowsOp::read_sizes(const Attributes& node) {
  const auto pair = [&](const char* name, int64_t least, int64_t& first, int64_t& second) {
    const std::vector<int64_t> values = get_sizes(node, name, 2, least);
    first = values[0];
    second = values[1];
  };
  pair("image", 1, height_, width_);
  pair("window", 1, window_height_, window_width_);
  pair("shift", 0, down_, right_);
  throw_if(down_ >= height_ || right_ >= width_, "attribute 'shift' must be less than 'image'");
  throw_if(add_ && into_ && (height_ % window_height_ != 0 || width_ % window_width_ != 0),
           "attribute 'window' must divide 'image'");
  throw_if(rows_of_image() > INT32_MAX, "an image has 2^31 rows or more");
}

void RowNormWindowsOp::read(const Node& node) {
  epsilon_ = node.get_float("epsilon");
  read_sizes(node);
}

int64_t RowNormWindowsOp::windows() const {
  return gpu::divide_up(height_, window_height_) * gpu::divide_up(width_, window_width_);
}

double RowNormWindowsOp::rows_of_image() const {
  return static_cast<double>(windows()) * static_cast<double>(window_height_) *
         static_cast<double>(window_width_);
}

int64_t RowNormWindowsOp::images(const Shape& x) const {
  const int64_t pixels = height_ * width_;
  const bool has_pixels = x.rank() == 3 && x[1] == pixels;
  if (add_ && into_) {
    throw_if(!has_pixels, "X must be [N, ", pixels, ", D], got ", x);
  } else {
    throw_if(!has_pixels && (x.rank() != 4 || x[1] != height_ || x[2] != width_), "X must be [N, ", height_,
             ", ", width_, ", D] or [N, ", pixels, ", D], got ", x);
  }
  return x[0];
}

RowNormProblem RowNormWindowsOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  const int64_t N = images(x), D = x[x.rank() - 1], rows = windows() * window_height_ * window_width_;
  throw_if(N > INT32_MAX / rows, "there are 2^31 rows or more");
  if (add_) {
    require_shape("R", inputs[1], into_ ? x : Shape{N * windows(), window_height_ * window_width_, D});
  }
  const size_t gamma = add_ ? 2 : 1;
  require_shape("gamma", inputs[gamma], {D});
  require_shape("beta", inputs[gamma + 1], {D});
  RowNormProblem p;
  p.D = D;
  p.rows = N * (add_ ? height_ * width_ : rows);
  p.epsilon = epsilon_;
  p.has_residual = p.writes_sum = add_;
  p.order = into_ ? RowOrder::kIntoWindows : RowOrder::kFromWindows;
  p.windows = row_windows(height_, width_, window_height_, window_width_, down_, right_);
  return p;
}

Shape RowNormWindowsOp::output(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  if (!into_) return x;
  return {images(x) * windows(), window_height_ * window_width_, x[x.rank() - 1]};
}

Shape RowNormWindowsOp::output_shape(const Shape& y, size_t i) const {
  return i == 0 || !into_ ? y : Shape{y[0] / windows(), height_ * width_, y[2]};
}

void RowNormWindowsOp::infer(const ShapeInference& node) const {
  const SymbolicShape x = node.input(0);
  for (size_t i = into_ ? 1 : 0; i < outputs(); ++i) node.set_output(i, x);
  if (!into_) return;
  RowNormWindowsOp sizes = *this;
  sizes.read_sizes(node);
  if (x.empty() || !x[0].known() || x[0].value > INT32_MAX) return;
  node.set_output(
      0, {{x[0].value * sizes.windows(), ""}, {sizes.window_height_ * sizes.window_width_, ""}, x.back()});
}

namespace {

template <class Op, class T>
class RowNormKernel final : public CpuKernel<Op> {
 public:
  using CpuKernel<Op>::CpuKernel;
  bool run(Call& call) const override {
    const RowNormProblem& p = this->problem(call);
    const size_t gamma = p.has_residual ? 2 : 1;
    cpu::row_norm(p, data<T>(call, 0), p.has_residual ? data<T>(call, 1) : nullptr, data<T>(call, gamma),
                  p.rms ? nullptr : data<T>(call, gamma + 1), call.outputs[0].as<T>(),
                  p.writes_sum ? call.outputs[1].as<T>() : nullptr, *call.parallel, call.workspace);
    return true;
  }

 private:
  size_t workspace(const RowNormProblem& p, size_t workers) const override {
    return cpu::row_norm_workspace<T>(p, workers);
  }
};
template <class T>
using KernelOfRows = RowNormKernel<RowNormOp, T>;
template <class T>
using KernelOfWindows = RowNormKernel<RowNormWindowsOp, T>;

// Drops leading axes of size 1 down to `rank`, so that [1, 1, D] is accepted as a row.
Shape without_leading_ones(const Shape& shape, size_t rank) {
  size_t first = 0;
  while (shape.rank() - first > rank && shape[first] == 1) ++first;
  Shape rest(shape.rank() - first);
  std::copy(shape.data() + first, shape.data() + shape.rank(), rest.data());
  return rest;
}

// The outputs for the mean and the inverse deviation of each row. They have the shape of input 0, with size 1 for
// the axes of a row.
struct Statistics {
  size_t mean, deviation;  // output indices; 0: no such output

  // Adds the launch of `p` with the outputs y and sum, and the copies of the statistics to their outputs.
  void launch(Call& call, Program& program, RowNormProblem p, size_t axis, std::initializer_list<Ref> inputs,
              Ref y, Ref sum) const {
    const Tensor& x = call.input(0);
    Shape shape = x.shape;
    for (size_t d = axis; d < shape.rank(); ++d) shape[d] = 1;
    // An omitted output before a present one looks present here, but its copy is not run.
    const auto requested = [&](size_t i) { return i > 0 && i < call.outputs.size(); };
    p.writes_statistics = requested(mean) || requested(deviation);
    const int64_t bytes = p.rows * bytes_of(ElementType::kFloat);
    Ref both = p.writes_statistics ? program.reserve(2 * bytes) : Ref();
    program.launch(gpu::row_norm_plan(p, is_half(x), call.aligned(), program.device().facts()), inputs,
                   {y, sum, both});
    for (const size_t i : {mean, deviation}) {
      if (requested(i))
        program.copy(set_output(call, i, shape, ElementType::kFloat), both, p.D > 0 ? bytes : 0);
      both.at += bytes;
    }
  }
};

// LayerNormalization and RMSNormalization over the axes from `axis` on. Inputs: X, scale and optionally B. Outputs: Y,
// each row's mean unless rms, and each row's inverse deviation.
Planner plan_row_norm(const Node& node, bool rms) {
  const Statistics statistics = {rms ? size_t{0} : 1, rms ? size_t{1} : 2};
  const int64_t given_axis = node.get_int("axis", -1);
  const float epsilon = node.get_float("epsilon", 1e-5f);
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    const size_t rank = x.shape.rank(), axis = axis_of(given_axis, rank);
    Shape row(rank - axis);
    for (size_t d = axis; d < rank; ++d) row[d - axis] = x.shape[d];
    RowNormProblem p;
    p.D = row.elements();
    p.rows = x.shape.elements(0, axis);
    p.epsilon = epsilon;
    p.rms = rms;
    p.has_beta = call.has_input(2);
    const Ref y = set_output(call, 0, x.shape);
    const bool half = is_half(x);
    const auto parameter = [&](size_t i) {
      const Shape given = without_leading_ones(call.input(i).shape, row.rank());
      if (given == row) return Ref::input(i);
      const Ref repeated = program.reserve(p.D * bytes_of(x.type));
      program.launch(gpu::broadcast_plan(given, row, half, call.aligned()), {Ref::input(i)}, {repeated});
      return repeated;
    };
    const Ref gamma = parameter(1), beta = p.has_beta ? parameter(2) : Ref();
    statistics.launch(call, program, p, axis, {Ref::input(0), gamma, beta}, y, Ref());
  };
}

// Plans the norm of input + skip + bias. Inputs: input, skip, gamma, beta unless rms, bias; outputs: the norm, each
// row's mean and inverse deviation, and the sum.
Planner plan_skip_norm(const Node& node, bool rms) {
  const float epsilon = node.get_float("epsilon", 1e-12f);
  return [=](Call& call, Program& program) {
    const Tensor &x = call.input(0), &skip = call.input(1), &gamma = call.input(2);
    const int64_t D = gamma.shape.elements();
    const size_t beta = 3, bias = rms ? 3 : 4;
    throw_if(x.shape.rank() == 0 || x.shape[x.shape.rank() - 1] != D,
             "gamma must have the size of the last axis");
    throw_if(!rms && call.has_input(beta) && call.input(beta).shape.elements() != D,
             "beta must have the size of the last axis");
    const bool half = is_half(x);
    RowNormProblem p = {D == 0 ? 0 : x.shape.elements() / D, D, epsilon, rms, true, call.outputs.size() > 3};
    p.has_beta = !rms && call.has_input(beta);
    for (size_t i = 0; i < call.outputs.size(); i += 3) set_output(call, i, x.shape);
    Ref from = Ref::input(0), other = Ref::input(1);
    const auto add = [&](const Shape& b, Ref which) {
      const Ref sum = program.reserve(x.shape.elements() * bytes_of(x.type));
      program.launch(gpu::add_plan(x.shape, b, half, call.aligned()), {from, which}, {sum});
      from = sum;
    };
    if (call.has_input(bias)) add(call.input(bias).shape, Ref::input(bias));
    if (skip.shape != x.shape) {  // skip is repeated for each sequence
      const Ref repeated = program.reserve(x.shape.elements() * bytes_of(x.type));
      program.launch(gpu::broadcast_plan(skip.shape, x.shape, half, call.aligned()), {other}, {repeated});
      other = repeated;
    }
    const Ref b = p.has_beta ? Ref::input(beta) : Ref();
    Statistics{1, 2}.launch(call, program, p, x.shape.rank() - 1, {from, other, Ref::input(2), b},
                            Ref::output(0), p.writes_sum ? Ref::output(3) : Ref());
  };
}

std::string refuse_row_norm(const Node& node, size_t statistics) {
  const std::string mixed = refuse_mixed_floats(node);
  if (!mixed.empty()) return mixed;
  for (size_t i = 1; i <= statistics; ++i) {
    const bool requested = i < node.outputs.size() && node.outputs[i].present;
    if (requested && node.outputs[i].type != ElementType::kFloat) return "the statistics are not float";
  }
  return "";
}

}  // namespace

void add_row_norm(Kernels& kernels) {
  kernels.add_cpu<RowNormOp, KernelOfRows>(Reuse::kInplace);
  kernels.add_gpu<RowNormOp, BuiltInGpuKernel<RowNormOp, gpu::row_norm_plan>>(Where::kGpu, Reuse::kInplace);
  kernels.add_cpu<RowNormWindowsOp, KernelOfWindows>();
  kernels.add_gpu<RowNormWindowsOp, BuiltInGpuKernel<RowNormWindowsOp, gpu::row_norm_plan>>(Where::kGpu);
  const auto norm = [&](const char* name, int first, int last, bool rms) {
    kernels.add_onnx(name, first, last, plan_row_norm, rms).refused([rms](const Node& node) {
      return refuse_row_norm(node, rms ? 1 : 2);
    });
  };
  norm("LayerNormalization", 1, 17, false);
  norm("RMSNormalization", 23, 23, true);
  norm("SimplifiedLayerNormalization", 1, 1, true);  // ONNX Runtime's name for RMSNormalization
  const auto skip_norm = [](const Node& node) { return refuse_row_norm(node, 2); };
  kernels.add_microsoft("SkipLayerNormalization", plan_skip_norm, false).refused(skip_norm);
  kernels.add_microsoft("SkipSimplifiedLayerNormalization", plan_skip_norm, true).refused(skip_norm);
}

}  // namespace graphopt
