// DFT and STFT on a GPU.
#pragma once

#include "device/launch.h"
#include "operators/sequence/dft/args.h"

namespace graphopt::gpu {

using hip::DftStrides;

struct DftProblem {
  int64_t lines = 1, per = 1;   // `per`: see DftStrides
  int64_t N = 1, L = 1, K = 1;  // inputs of a line, length of the transform, outputs
  DftStrides from = {}, to = {};
  bool complex = false, inverse = false, window = false;
};

// Inputs x and an optional window; output y of complex elements. Throws std::invalid_argument if L or K is too large.
Plan dft_plan(const DftProblem& p, bool half);

}  // namespace graphopt::gpu
