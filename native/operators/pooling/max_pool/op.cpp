#include "operators/pooling/max_pool/op.h"

#include "operators/kernel_bases.h"
#include "operators/window.h"

namespace graphopt {
void MaxPoolOp::read(const Node& node) {
  kernel_ = get_sizes(node, "kernel_shape", 2, 1);
  pads_ = get_sizes(node, "pads", 4, 0);
  strides_ = get_sizes(node, "strides", 2, 1);
  dilations_ = get_sizes(node, "dilations", 2, 1);
  for (size_t i = 0; i < 4; ++i) {
    throw_if(pads_[i] >= (kernel_[i % 2] - 1) * dilations_[i % 2] + 1,
             "pads must be smaller than the window");
  }
}

MaxPoolProblem MaxPoolOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  throw_if(nchw2c_ && (x.rank() != 5 || x[4] != 2), "X ", x,
           " is not in the NCHW2c layout: its last axis must be 2");
  throw_if(!nchw2c_ && x.rank() != 4, "X must have rank 4, got ", x);
  MaxPoolProblem p;
  p.planes = x[0] * x[1];
  double padded = static_cast<double>(p.planes);
  for (size_t i = 0; i < 2; ++i) {
    p.in[i] = x[2 + i];
    p.kernel[i] = kernel_[i];
    p.stride[i] = strides_[i];
    p.dilation[i] = dilations_[i];
    p.pad[i] = pads_[i];
    const int64_t slack = p.in[i] + pads_[i] + pads_[2 + i] - (kernel_[i] - 1) * dilations_[i] - 1;
    p.out[i] = pool_positions(slack, strides_[i]);
    throw_if(p.out[i] < 0, "X ", x, " with its pads is smaller than the window");
    padded *= static_cast<double>(p.in[i] + pads_[i] + pads_[2 + i]);
  }
  throw_if(padded > 0x1p40, "X ", x, " with its pads is too large");
  return p;
}

Shape MaxPoolOp::output(const Shapes& inputs) const {
  const MaxPoolProblem p = problem(inputs);
  Shape y = inputs[0];
  for (size_t i = 0; i < 2; ++i) y[2 + i] = p.out[i];
  return y;
}

void MaxPoolOp::infer(const ShapeInference& node) const {
  SymbolicShape y = node.input(0);
  const auto kernel = find_sizes(node, "kernel_shape", 2, 1), pads = find_sizes(node, "pads", 4, 0),
             strides = find_sizes(node, "strides", 2, 1), dilations = find_sizes(node, "dilations", 2, 1);
  if (y.size() != (nchw2c_ ? 5 : 4) || !kernel || !pads || !strides || !dilations) return;
  for (size_t i = 0; i < 2; ++i) {
    if (!y[2 + i].known()) return;
    const int64_t slack =
        y[2 + i].value + (*pads)[i] + (*pads)[2 + i] - ((*kernel)[i] - 1) * (*dilations)[i] - 1;
    const int64_t positions = pool_positions(slack, (*strides)[i]);
    if (positions < 0) return;
    y[2 + i] = Dim{positions, ""};
  }
  node.set_output(0, y);
}

namespace {

template <class T>
using MaxPool = CpuKernelOf<MaxPoolOp, T, 1, cpu::max_pool<T>, cpu::max_pool_workspace<T>>;

template <class>
using MaxPoolNchw2c = MaxPool<uint32_t>;

}  // namespace

void add_max_pool(Kernels& kernels) {
  kernels.add_cpu<MaxPoolOp, MaxPoolNchw2c>(Reuse::kNone, {ElementType::kBfloat16}, {MaxPoolOp(true)});
  kernels.add_cpu<MaxPoolOp, MaxPool>(Reuse::kNone, {ElementType::kFloat, ElementType::kHalf},
                                      {MaxPoolOp(false)});
}

}  // namespace graphopt
