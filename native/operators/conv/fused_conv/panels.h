// Multiplies vectors of pixels by the weights of a block of channels (panels_cpu.cpp). For kernel files only (see
// cpu/isa.h).
#pragma once

#include <cstdint>

#include "operators/conv/fused_conv/finish.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Panels [begin, end) of a strip. A panel has kPanel vectors of pixels; the last panel may have one.
struct Panels {
  const Pixels* pixels;
  int64_t vectors, begin, end;
};

// Multiplies the panels of s by the weights [steps][rows] at w and computes y from the sums. `each` has the initial
// sums of all panels, and the data that the first panel prefetches. F is a Finish of the block's channels.
template <class E, class F>
void multiply_panels(int64_t rows, const Panels& panels, const Word* w, const Word* s, const Steps& steps,
                     const StoreSums& each, const F& finish);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
