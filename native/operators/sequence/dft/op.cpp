// DFT and STFT.
#include "operators/sequence/dft/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// Returns true if the elements are complex. Throws Error unless the last axis has size 1 or 2.
bool is_complex(const Shape& x) {
  const int64_t last = x[x.rank() - 1];
  throw_if(last != 1 && last != 2, "the last axis must have size 1 (real) or 2 (complex), got ", last);
  return last == 2;
}

// The length is input 1. The axis is input 2, or before opset 20 an attribute.
Planner plan_dft(const Node& node) {
  const int64_t given = node.get_int("axis", node.version >= 20 ? -2 : 1);
  const bool inverse = node.get_bool("inverse"), onesided = node.get_bool("onesided");
  return [=](Call& call, Program& program) {
    const Shape& x = call.input(0).shape;
    throw_if(x.rank() < 2, "the input must have rank 2 or more");
    const size_t axis = axis_of(call.has_input(2) ? call.integer(2, "the axis") : given, x.rank());
    throw_if(axis + 1 == x.rank(), "the axis must not be the last one, which holds real and imaginary parts");
    gpu::DftProblem p;
    p.complex = is_complex(x);
    const int64_t width = p.complex ? 2 : 1;
    p.L = call.has_input(1) ? call.integer(1, "the length") : x[axis];
    throw_if(p.L < 1, "the length of the transform must be 1 or more, got ", p.L);
    p.N = std::min(p.L, x[axis]);
    p.K = onesided ? p.L / 2 + 1 : p.L;
    p.inverse = inverse;
    Shape y = x;
    y[axis] = p.K;
    y[x.rank() - 1] = 2;
    p.per = x.elements(axis + 1) / width;
    p.lines = x.elements(0, axis) * p.per;
    p.from = {x[axis] * p.per * width, width, p.per * width};
    p.to = {p.K * p.per * 2, 2, p.per * 2};
    const Ref out = set_output(call, 0, y);
    program.launch(gpu::dft_plan(p, is_half(call.input(0))), {Ref::input(0)}, {out});
  };
}

std::string refuse_dft(const Node& node) {
  if (node.get_bool("inverse") && node.get_bool("onesided")) {
    return "onesided is combined with inverse";
  }
  return refuse_mixed_floats(node, {1, 2});
}

// Inputs: the signal [B, T] or [B, T, 1 or 2], the step, the window, the length of a frame.
Planner plan_stft(const Node& node) {
  const bool onesided = node.get_bool("onesided", true);
  return [=](Call& call, Program& program) {
    const Shape& x = call.input(0).shape;
    throw_if(x.rank() != 2 && x.rank() != 3, "the signal must have rank 2 or 3");
    gpu::DftProblem p;
    p.complex = x.rank() == 3 && is_complex(x);
    p.window = call.has_input(2);
    throw_if(!p.window && !call.has_input(3), "a window or the length of a frame is needed");
    p.L = call.has_input(3) ? call.integer(3, "the length of a frame") : call.input(2).shape.elements();
    throw_if(p.window && call.input(2).shape != Shape{p.L}, "the window must be as long as a frame");
    const int64_t step = call.integer(1, "the step"), T = x[1], width = p.complex ? 2 : 1;
    throw_if(p.L < 1 || p.L > T || step < 1, "frames of ", p.L, " elements with a step of ", step,
             " do not fit a signal of ", T);
    p.N = p.L;
    p.K = onesided ? p.L / 2 + 1 : p.L;
    const int64_t frames = (T - p.L) / step + 1;
    p.per = frames;
    p.lines = x[0] * frames;
    p.from = {T * width, step * width, width};
    p.to = {frames * p.K * 2, p.K * 2, 2};
    const Ref out = set_output(call, 0, {x[0], frames, p.K, 2});
    const Ref window = p.window ? Ref::input(2) : Ref{};
    program.launch(gpu::dft_plan(p, is_half(call.input(0))), {Ref::input(0), window}, {out});
  };
}

}  // namespace

void add_dft(Kernels& kernels) {
  kernels.add_onnx("DFT", 17, 20, plan_dft).refused(refuse_dft).reads_on_host({1, 2});
  kernels.add_onnx("STFT", 17, 17, plan_stft)
      .refused([](const Node& node) { return refuse_mixed_floats(node, {1, 3}); })
      .reads_on_host({1, 3});
}

}  // namespace graphopt
