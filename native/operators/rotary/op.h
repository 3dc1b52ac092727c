// RotaryEmbedding on a GPU.
#pragma once

#include "device/launch.h"

namespace graphopt::gpu {

// X [B, S, N, H], or [B, N, S, H] with heads_first; cos and sin [positions, half].
struct RotaryProblem {
  int64_t B = 1, S = 1, N = 1, H = 1, half = 1, positions = 1;
  bool heads_first = false, one_id = false, interleaved = false, has_ids = true;
};

// Inputs x, ids, cos, sin; output y. Throws std::invalid_argument.
Plan rotary_plan(const RotaryProblem& p, bool half);

}  // namespace graphopt::gpu
