// Shapes before any tensor exists.
#pragma once

#include "operators/tensor.h"

namespace graphopt::abi {

using graphopt::Shape;

// A dim before any tensor exists: a value >= 0, or a symbol, or neither (unknown).
struct Dim {
  int64_t value = -1;
  std::string symbol;

  bool known() const { return value >= 0; }
  bool unnamed() const { return value < 0 && symbol.empty(); }
  friend bool operator==(const Dim& a, const Dim& b) {
    return !a.unnamed() && a.value == b.value && a.symbol == b.symbol;
  }
};

// Empty when the rank is not known; none of our operators takes scalars.
using SymbolicShape = std::vector<Dim>;

}  // namespace graphopt::abi
