// What may follow a node and be computed with it: y = act(node + residual). A region looks for it
// (runtime/provider/tails.h).
#pragma once

#include "operators/activation.h"

namespace graphopt {

struct Tail {
  Activation act;
  bool has_residual = false;
};

}  // namespace graphopt
