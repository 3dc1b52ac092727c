// LSTM, GRU and RNN: one GEMM for the inputs of all steps and directions, then a kernel for the recurrence.
#include "operators/sequence/recurrent/op.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "operators/kernel_bases.h"
#include "operators/matmul/matmul/gemm_call.h"

namespace graphopt {
namespace {

void require(const Call& call, size_t i, const char* name, const Shape& shape) {
  if (call.has_input(i) && call.inputs[i].shape != shape) {
    throw Error(name, " of ", call.inputs[i].shape, " should be ", shape);
  }
}

// Inputs: X, W, R, B, sequence_lens, initial_h, and for LSTM initial_c and P. Outputs: Y, Y_h, and for LSTM
// Y_c.
Planner plan_recurrent(const Node& node, gpu::RecurrentKind given) {
  const GemmChoice choice(node);
  const bool resets = given == gpu::RecurrentKind::kGru && !node.get_bool("linear_before_reset");
  const gpu::RecurrentKind kind = resets ? gpu::RecurrentKind::kGruReset : given;
  const int64_t hidden = node.get_int("hidden_size", 0);
  const bool backward = node.get_string("direction", "forward") == "reverse";
  const bool batch_first = node.get_bool("layout");
  const float clip = node.get_float("clip", 0.0f);
  return [=](Call& call, Program& program) {
    const Tensor &x = call.input(0), &w = call.input(1), &r = call.input(2);
    throw_if(x.shape.rank() != 3 || w.shape.rank() != 3 || r.shape.rank() != 3,
             "X, W and R must have rank 3");
    gpu::RecurrentProblem p;
    p.kind = kind;
    p.D = w.shape[0];
    p.S = x.shape[batch_first ? 1 : 0];
    p.B = x.shape[batch_first ? 0 : 1];
    p.H = hidden > 0 ? hidden : r.shape[2];
    p.backward = backward;
    p.batch_first = batch_first;
    p.clip = clip;
    const int64_t inputs = x.shape[2], G = p.gates();
    throw_if(p.D != 1 && p.D != 2, "W must have one or two directions");
    const Shape state = batch_first ? Shape{p.B, p.D, p.H} : Shape{p.D, p.B, p.H};
    require(call, 1, "W", {p.D, G * p.H, inputs});
    require(call, 2, "R", {p.D, G * p.H, p.H});
    require(call, 3, "B", {p.D, 2 * G * p.H});
    require(call, 4, "sequence_lens", {p.B});
    require(call, 5, "initial_h", state);
    require(call, 6, "initial_c", state);
    require(call, 7, "P", {p.D, 3 * p.H});
    p.bias = call.has_input(3);
    p.lengths = call.has_input(4);
    p.h = call.has_input(5);
    p.c = call.has_input(6);
    p.peepholes = call.has_input(7);
    const Shape y = batch_first ? Shape{p.B, p.S, p.D, p.H} : Shape{p.S, p.D, p.B, p.H};
    std::vector<Ref> outputs(3);
    for (size_t i = 0; i < std::min(call.outputs.size(), outputs.size()); ++i) {
      set_output(call, i, i == 0 ? y : state);
      outputs[i] = Ref::optional_output(i);
    }
    if (state.elements() == 0) return;
    const bool half = is_half(x);
    const Ref projection = program.reserve(p.S * p.B * p.D * G * p.H * (half ? 2 : 4));
    gpu::GemmProblem gemm;
    gemm.M = p.S * p.B;
    gemm.N = p.D * G * p.H;
    gemm.K = inputs;
    gemm.transpose_b = true;
    if (gemm.M > 0) {
      choice.plan({{std::move(gemm), half, call, program}, Ref::input(0), Ref::input(1), projection});
    }
    program.launch(gpu::recurrent_plan(p, half, program.device().facts()),
                   {projection, Ref::input(2), input_or_none(call, 3), input_or_none(call, 7),
                    input_or_none(call, 4), input_or_none(call, 5), input_or_none(call, 6)},
                   {outputs[0], outputs[1], outputs[2]});
  };
}

// Returns the reason to refuse a node. `usual`: the operator's default activations, for one direction. Other
// activations have no kernel: some of them have parameters (activation_alpha, activation_beta), which the runtime does
// not pass to a kernel on a device.
std::string refuse_recurrent(const Node& node, const std::vector<const char*>& usual) {
  const std::string direction = node.get_string("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional") {
    return "this direction is not known";
  }
  if (node.get_bool("input_forget")) return "input_forget couples the input and forget gates";
  if (const auto names = node.find_strings("activations")) {
    for (size_t i = 0; i < names->size(); ++i) {
      std::string name = (*names)[i];
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      if (name != usual[i % usual.size()]) return "the activations are not the default ones";
    }
  }
  if (node.has_input(4) && node.inputs[4].type != ElementType::kInt32)
    return "the sequence lengths are not int32";
  return refuse_mixed_floats(node, {4});
}

}  // namespace

void add_recurrent(Kernels& kernels) {
  using gpu::RecurrentKind;
  const auto add = [&kernels](const char* name, RecurrentKind kind, std::vector<const char*> usual) {
    kernels.add_onnx(name, 7, 22, plan_recurrent, kind)
        .refused([usual](const Node& node) { return refuse_recurrent(node, usual); })
        .chooses(GemmChoice::implementations());
  };
  add("LSTM", RecurrentKind::kLstm, {"sigmoid", "tanh", "tanh"});
  add("GRU", RecurrentKind::kGru, {"sigmoid", "tanh"});
  add("RNN", RecurrentKind::kRnn, {"tanh"});
}

}  // namespace graphopt
