#include "operators/max_pool/op.h"

#include "operators/room.h"
#include "operators/window.h"

namespace graphopt {

void PoolOp::read(const Node& node) {
  constexpr int64_t kLargest = 0x7fffffff;  // so that sizes that are made of them have 64 bits
  kernel_ = node.get_ints("kernel_shape");
  pads_ = node.get_ints("pads");
  strides_ = node.get_ints("strides");
  dilations_ = node.get_ints("dilations");
  require_sizes(2, kernel_, 1);
  require_sizes(2, strides_, 1);
  require_sizes(2, dilations_, 1);
  require_sizes(4, pads_, 0);
  for (const auto* numbers : {&kernel_, &pads_, &strides_, &dilations_}) {
    if (numbers->empty()) throw Error("an attribute of the window holds no numbers");
    for (const int64_t number : *numbers) {
      if (number > kLargest) throw Error("an attribute of the window is " + std::to_string(number));
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    if (pads_[i] >= (kernel_[i % 2] - 1) * dilations_[i % 2] + 1) throw Error("pads as wide as the window");
  }
}

PoolProblem PoolOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  if (pairs_ && (x.rank() != 5 || x[4] != 2)) {
    throw Error("X " + x.text() + " has no pairs of channels behind its other axes");
  }
  if (!pairs_ && x.rank() != 4) throw Error("X must have rank 4, got " + x.text());
  PoolProblem p;
  p.planes = x[0] * x[1];
  double padded = static_cast<double>(p.planes);
  for (size_t i = 0; i < 2; ++i) {
    p.in[i] = x[2 + i];
    p.kernel[i] = kernel_[i];
    p.stride[i] = strides_[i];
    p.dilation[i] = dilations_[i];
    p.pad[i] = pads_[i];
    const int64_t room = p.in[i] + pads_[i] + pads_[2 + i] - (kernel_[i] - 1) * dilations_[i] - 1;
    p.out[i] = pool_places(room, strides_[i]);
    if (p.out[i] < 0) throw Error("X " + x.text() + " with its pads is smaller than the window");
    padded *= static_cast<double>(p.in[i] + pads_[i] + pads_[2 + i]);
  }
  if (padded > 0x1p40) throw Error("X " + x.text() + " with its pads is too large");
  return p;
}

Shape PoolOp::output(const Shapes& inputs) const {
  const PoolProblem p = problem(inputs);
  Shape y = inputs[0];
  for (size_t i = 0; i < 2; ++i) y[2 + i] = p.out[i];
  return y;
}

void PoolOp::infer(const ShapeInference& node) const {
  SymbolicShape y = node.input(0);
  const auto kernel = node.get_ints("kernel_shape"), pads = node.get_ints("pads"),
             strides = node.get_ints("strides"), dilations = node.get_ints("dilations");
  if (y.size() != (pairs_ ? 5 : 4) || kernel.size() != 2 || pads.size() != 4 || strides.size() != 2 ||
      dilations.size() != 2) {
    return;
  }
  for (size_t i = 0; i < 2; ++i) {
    if (!y[2 + i].known() || strides[i] < 1) return;
    const int64_t room = y[2 + i].value + pads[i] + pads[2 + i] - (kernel[i] - 1) * dilations[i] - 1;
    if (pool_places(room, strides[i]) < 0) return;
    y[2 + i] = Dim{pool_places(room, strides[i]), ""};
  }
  node.set_output(0, y);
}

namespace {

template <class T>
class MaxPool final : public CpuKernel<PoolOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    cpu::max_pool(problem(call), data<T>(call, 0), call.outputs[0].as<T>(), *call.parallel, call.workspace);
    return true;
  }

 private:
  size_t workspace(const PoolProblem& p, size_t lanes) const override {
    return cpu::max_pool_workspace<T>(p, lanes);
  }
};

template <class>
using MaxPoolOfPairs = MaxPool<uint32_t>;

}  // namespace

void add_max_pool(Kernels& kernels) {
  kernels.add_cpu<PoolOp, MaxPoolOfPairs>(Reuse::kNone, {ElementType::kBfloat16}, {PoolOp(true)});
  kernels.add_cpu<PoolOp, MaxPool>(Reuse::kNone, {ElementType::kFloat, ElementType::kHalf}, {PoolOp(false)});
}

}  // namespace graphopt
