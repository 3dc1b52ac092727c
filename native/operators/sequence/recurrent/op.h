// LSTM, GRU and RNN on a GPU.
#pragma once

#include <optional>

#include "device/launch.h"
#include "operators/sequence/recurrent/args.h"

namespace graphopt::gpu {

using hip::RecurrentKind;

struct RecurrentProblem {
  RecurrentKind kind = RecurrentKind::kLstm;
  int64_t D = 1, B = 1, S = 1, H = 1;  // directions, sequences, steps, hidden units
  bool backward = false;               // direction 0 is processed backward; direction 1 always is
  bool batch_first = false;  // X [B, S, I], Y [B, S, D, H], states [B, D, H]; else S or D comes first
  float clip = 0;            // limit of the gates' inputs; 0: none
  // Optional inputs.
  bool bias = false, peepholes = false, lengths = false, h = false, c = false;

  int64_t gates() const { return kind == RecurrentKind::kLstm ? 4 : kind == RecurrentKind::kRnn ? 1 : 3; }
};

// The recurrence after the GEMM of X and W. Inputs: the GEMM's result, R, bias, peepholes, lengths, h, c;
// outputs: Y, the last h, the last c. Outputs may be null. `at_once` overrides whether all steps run in one
// launch.
Plan recurrent_plan(const RecurrentProblem& p, bool half, const DeviceFacts& device,
                    std::optional<bool> at_once = std::nullopt);

}  // namespace graphopt::gpu
