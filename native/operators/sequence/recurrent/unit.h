// The update of a hidden unit in a step, after the sums of its gates. For the kernels of this folder.
#pragma once

#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "operators/sequence/recurrent/args.h"

namespace graphopt::hip {

// The sequences of a work-group: `count` sequences from `first` on, in one direction.
struct RecurrentSequences {
  int direction, first, count;
};

// The states of the sequences, one float per unit: h before and after the step; `auxiliary`: c for kLstm, the reset
// gate times h for kGruReset; `update`: the update gate of kGruReset.
struct RecurrentState {
  const float* current;
  float *next, *auxiliary, *update;
};

// Returns part `which` of the state for the sequences of a work-group.
DEVICE float* state_of(const RecurrentArgs& args, const RecurrentSequences& group, int which) {
  const size_t sequence =
      static_cast<size_t>(which * args.D + group.direction) * static_cast<size_t>(args.B) +
      static_cast<size_t>(group.first);
  return static_cast<float*>(args.state) + sequence * static_cast<size_t>(args.H);
}

DEVICE int gates_of(RecurrentKind kind) {
  return kind == RecurrentKind::kLstm ? 4 : kind == RecurrentKind::kRnn ? 1 : 3;
}

// The element of a sequence that a step reads. `active` is false after the end of the sequence.
struct SequencePosition {
  int time;
  bool active;
};

DEVICE SequencePosition sequence_position(const RecurrentArgs& args, int direction, int b, int s) {
  int length = args.S;
  const int32_t* const lengths = args.lengths;
  if (lengths != nullptr) length = max_int(0, min_int(lengths[b], args.S));
  const bool active = s < length;
  return {active && direction >= args.first_backward ? length - 1 - s : s, active};
}

// Returns the address in `projection` of the gates of unit 0 for one element of a sequence. Gates have stride H.
template <class T>
DEVICE const T* recurrent_input(const RecurrentArgs& args, int direction, int b, int time, size_t all) {
  const size_t row = static_cast<size_t>(time) * static_cast<size_t>(args.step_rows) +
                     static_cast<size_t>(b) * static_cast<size_t>(args.sequence_rows);
  return static_cast<const T*>(args.projection) +
         (row * static_cast<size_t>(args.D) + static_cast<size_t>(direction)) * all;
}

// Reads the input and state biases of `count` gates, which begin at index `unit` and are H apart, and the peepholes of
// unit j. Does not write parameters that the node omits.
template <class T, int kGates>
DEVICE void read_parameters(const RecurrentArgs& args, size_t d, size_t all, int unit, int count, int H,
                            int j, float* input_bias, float* state_bias, float* peephole) {
  const T* const bias = args.bias;
  const T* const peepholes = args.peepholes;
  UNROLL for (int g = 0; g < kGates; ++g) {
    if (g >= count || bias == nullptr) continue;
    input_bias[g] = to_float(bias[2 * d * all + static_cast<size_t>(g * H + unit)]);
    state_bias[g] = to_float(bias[(2 * d + 1) * all + static_cast<size_t>(g * H + unit)]);
  }
  UNROLL for (int g = 0; g < 3; ++g) {
    if (peepholes == nullptr || (kGcn && kGates < kMaxGates)) continue;  // only LSTM has peepholes
    peephole[g] = to_float(
        peepholes[(3 * d + static_cast<size_t>(g)) * static_cast<size_t>(H) + static_cast<size_t>(j)]);
  }
}

// Returns the new h of a unit of a sequence, and updates c for kLstm. `in` and `sum` are the gates' sums over
// the inputs and over the previous state, both with their bias. For kGruReset the first call only computes
// gates.
DEVICE float update_unit(const RecurrentArgs& args, const RecurrentState& state, bool active, int at,
                         const float* in, const float* sum, const float* peephole, bool second) {
  const auto clipped = [&](float x) {
    if (args.clip == 0) return x;
    x = x < -args.clip ? -args.clip : x;
    return x > args.clip ? args.clip : x;
  };
  const float before = state.current[at];
  if (args.kind == RecurrentKind::kLstm) {
    const float c = state.auxiliary[at];
    const float input = sigmoid(clipped(in[0] + sum[0] + peephole[0] * c));
    const float forget = sigmoid(clipped(in[2] + sum[2] + peephole[2] * c));
    const float new_c = forget * c + input * tanh_fast(clipped(in[3] + sum[3]));
    const float output = sigmoid(clipped(in[1] + sum[1] + peephole[1] * new_c));
    if (active) state.auxiliary[at] = new_c;
    return output * tanh_fast(new_c);
  }
  if (args.kind == RecurrentKind::kGru) {
    const float update = sigmoid(clipped(in[0] + sum[0])), reset = sigmoid(clipped(in[1] + sum[1]));
    return (1 - update) * tanh_fast(clipped(in[2] + reset * sum[2])) + update * before;
  }
  if (args.kind == RecurrentKind::kRnn) return tanh_fast(clipped(in[0] + sum[0]));
  if (!second) {
    state.update[at] = sigmoid(clipped(in[0] + sum[0]));
    state.auxiliary[at] = sigmoid(clipped(in[1] + sum[1])) * before;
    return before;
  }
  const float update = state.update[at];
  return (1 - update) * tanh_fast(clipped(in[0] + sum[0])) + update * before;
}

template <class T>
DEVICE void write_unit(const RecurrentArgs& args, int direction, int b, const SequencePosition& position,
                       int j, float after) {
  T* const y = args.y;
  if (y == nullptr) return;
  y[position.time * args.y_step_stride + b * args.y_sequence_stride + direction * args.y_direction_stride +
    j] = from_float<T>(position.active ? after : 0.0f);
}

}  // namespace graphopt::hip
