// DFT and STFT.
#include "operators/sequence/dft/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

int64_t one_number(const Call& call, size_t i, const char* name) {
  const std::vector<int64_t> numbers = call.integers(i);
  if (numbers.size() != 1) throw Error(std::string(name) + " must be one number");
  return numbers[0];
}

// Real numbers, or pairs.
bool holds_pairs(const Shape& x) {
  const int64_t last = x[x.rank() - 1];
  if (last != 1 && last != 2) throw Error("the last axis must hold a real number, or a complex one");
  return last == 2;
}

// The length is input 1; the axis is input 2, before opset 20 an attribute.
class Dft final : public gpu::DeviceKernel {
 public:
  Dft(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        axis_(node.find_int("axis").value_or(node.version >= 20 ? -2 : 1)),
        inverse_(node.find_int("inverse").value_or(0) != 0),
        onesided_(node.find_int("onesided").value_or(0) != 0) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Shape& x = call.input(0).shape;
    if (x.rank() < 2) throw Error("the input must have rank 2 or more");
    const size_t axis = axis_of(call.has_input(2) ? one_number(call, 2, "the axis") : axis_, x.rank());
    if (axis + 1 == x.rank()) throw Error("the axis holds real and imaginary parts");
    gpu::DftProblem p;
    p.complex = holds_pairs(x);
    const int64_t width = p.complex ? 2 : 1;
    p.L = call.has_input(1) ? one_number(call, 1, "the length") : x[axis];
    if (p.L < 1) throw Error("a transform of " + std::to_string(p.L) + " elements");
    p.N = std::min(p.L, x[axis]);
    p.K = onesided_ ? p.L / 2 + 1 : p.L;
    p.inverse = inverse_;
    Shape y = x;
    y[axis] = p.K;
    y[x.rank() - 1] = 2;
    p.per = x.elements(axis + 1) / width;
    p.lines = x.elements(0, axis) * p.per;
    p.from = {x[axis] * p.per * width, width, p.per * width};
    p.to = {p.K * p.per * 2, 2, p.per * 2};
    const Ref out = set_output(call, 0, y);
    program.launch(gpu::dft_plan(p, is_half(call.input(0))), {Ref::input(0)}, {out});
  }

  int64_t axis_;
  bool inverse_, onesided_;
};

std::string refuse_dft(const Node& node) {
  if (node.find_int("inverse").value_or(0) != 0 && node.find_int("onesided").value_or(0) != 0) {
    return "one side of an inverse";
  }
  return refuse_mixed_floats(node, {1, 2});
}

// The signal [B, T] or [B, T, 1 or 2], the step, the window, the length of a frame.
class Stft final : public gpu::DeviceKernel {
 public:
  Stft(const Node& node, gpu::Device& device)
      : DeviceKernel(device), onesided_(node.find_int("onesided").value_or(1) != 0) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Shape& x = call.input(0).shape;
    if (x.rank() != 2 && x.rank() != 3) throw Error("the signal must have rank 2 or 3");
    gpu::DftProblem p;
    p.complex = x.rank() == 3 && holds_pairs(x);
    p.window = call.has_input(2);
    if (!p.window && !call.has_input(3)) throw Error("a window or the length of a frame is needed");
    p.L = call.has_input(3) ? one_number(call, 3, "the length of a frame") : call.input(2).shape.elements();
    if (p.window && call.input(2).shape != Shape{p.L}) throw Error("the window must be as long as a frame");
    const int64_t step = one_number(call, 1, "the step"), T = x[1], width = p.complex ? 2 : 1;
    if (p.L < 1 || p.L > T || step < 1) {
      throw Error("frames of " + std::to_string(p.L) + ", " + std::to_string(step) +
                  " apart, in a signal of " + std::to_string(T));
    }
    p.N = p.L;
    p.K = onesided_ ? p.L / 2 + 1 : p.L;
    const int64_t frames = (T - p.L) / step + 1;
    p.per = frames;
    p.lines = x[0] * frames;
    p.from = {T * width, step * width, width};
    p.to = {frames * p.K * 2, p.K * 2, 2};
    const Ref out = set_output(call, 0, {x[0], frames, p.K, 2});
    const Ref window = p.window ? Ref::input(2) : Ref{};
    program.launch(gpu::dft_plan(p, is_half(call.input(0))), {Ref::input(0), window}, {out});
  }

  bool onesided_;
};

}  // namespace

void add_dft(Kernels& kernels) {
  kernels.add_onnx<Dft>("DFT", 17, 20).refused(refuse_dft).reads_on_host({1, 2});
  kernels.add_onnx<Stft>("STFT", 17, 17)
      .refused([](const Node& node) { return refuse_mixed_floats(node, {1, 3}); })
      .reads_on_host({1, 3});
}

}  // namespace graphopt
