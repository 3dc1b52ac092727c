// Broadcasts symbolic dims in shape inference.
#pragma once

#include "operators/inference.h"

namespace graphopt {

inline Dim broadcast(const Dim& x, const Dim& y) {
  if (x == y || y.value == 1) return x;
  if (x.value == 1 || y.known()) return y;
  if (x.known()) return x;
  return {};
}

}  // namespace graphopt
