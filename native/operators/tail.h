// What may follow a node and be computed with it: y = act(node + residual), or PRelu(node + residual) with a slope for
// each channel. A region looks for it (runtime/provider/tails.h).
#pragma once

#include "operators/activation.h"

namespace graphopt {

struct Tail {
  Activation act;
  bool has_residual = false;
  bool has_slopes = false;  // of PRelu, in place of act: a number for each channel, behind the other inputs
};

}  // namespace graphopt
