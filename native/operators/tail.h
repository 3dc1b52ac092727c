// Operations that a kernel can fuse after a node: y = act(node + residual), or PRelu(node + residual) with a slope for
// each channel. runtime/provider/tails.h finds such nodes in a region.
#pragma once

#include "operators/activation.h"

namespace graphopt {

struct Tail {
  Activation act;
  bool has_residual = false;
  bool has_slopes = false;  // slopes of PRelu instead of act: one for each channel, after the other inputs
};

}  // namespace graphopt
