#include "operators/pool_pairs/op.h"

#include "operators/room.h"

namespace graphopt {

void PoolPairsOp::read(const Node& node) {
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

PoolPairsProblem PoolPairsOp::problem(const Shapes& inputs) const {
  const Shape& x = inputs[0];
  if (x.rank() != 5 || x[4] != 2) {
    throw Error("X " + x.text() + " has no pairs of channels behind its other axes");
  }
  PoolPairsProblem p;
  p.planes = x[0] * x[1];
  double padded = static_cast<double>(p.planes);
  for (size_t i = 0; i < 2; ++i) {
    p.in[i] = x[2 + i];
    p.kernel[i] = kernel_[i];
    p.stride[i] = strides_[i];
    p.dilation[i] = dilations_[i];
    p.pad[i] = pads_[i];
    const int64_t room = p.in[i] + pads_[i] + pads_[2 + i] - (kernel_[i] - 1) * dilations_[i] - 1;
    if (room < 0) throw Error("X " + x.text() + " with its pads is smaller than the window");
    p.out[i] = room / strides_[i] + 1;
    padded *= static_cast<double>(p.in[i] + pads_[i] + pads_[2 + i]);
  }
  if (padded > 0x1p40) throw Error("X " + x.text() + " with its pads is too large");
  return p;
}

Shape PoolPairsOp::output(const Shapes& inputs) const {
  const PoolPairsProblem p = problem(inputs);
  return {inputs[0][0], inputs[0][1], p.out[0], p.out[1], 2};
}

void PoolPairsOp::infer(const ShapeInference& node) const {
  SymbolicShape y = node.input(0);
  const auto kernel = node.get_ints("kernel_shape"), pads = node.get_ints("pads"),
             strides = node.get_ints("strides"), dilations = node.get_ints("dilations");
  if (y.size() != 5 || kernel.size() != 2 || pads.size() != 4 || strides.size() != 2 ||
      dilations.size() != 2) {
    return;
  }
  for (size_t i = 0; i < 2; ++i) {
    if (!y[2 + i].known() || strides[i] < 1) return;
    const int64_t room = y[2 + i].value + pads[i] + pads[2 + i] - (kernel[i] - 1) * dilations[i] - 1;
    if (room < 0) return;
    y[2 + i] = Dim{room / strides[i] + 1, ""};
  }
  node.set_output(0, y);
}

namespace {

template <class T>
class PoolPairsCpu final : public CpuKernel<PoolPairsOp> {
 public:
  using CpuKernel::CpuKernel;
  bool run(Call& call) const override {
    cpu::pool_pairs(problem(call), data<uint32_t>(call, 0), call.outputs[0].as<uint32_t>(), *call.parallel,
                    call.workspace);
    return true;
  }

 private:
  size_t workspace(const PoolPairsProblem& p, size_t lanes) const override {
    return cpu::pool_pairs_workspace<uint32_t>(p, lanes);
  }
};

}  // namespace

void add_pool_pairs(Kernels& kernels) {
  kernels.add_cpu<PoolPairsOp, PoolPairsCpu>(Reuse::kNone, {ElementType::kBfloat16});
}

}  // namespace graphopt
