// Shape inference of one node, before any tensor exists.
#pragma once

#include <string>
#include <vector>

#include "operators/kernel.h"

namespace graphopt {

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

// Missing knowledge is no error: whoever runs the node then learns the shape when it runs.
class ShapeInference : public Attributes {
 public:
  virtual SymbolicShape input(size_t i) const = 0;
  // The element type is input 0's unless it is given. Nothing is set when the rank or one dim is unknown.
  virtual void set_output(size_t i, const SymbolicShape& shape,
                          ElementType type = ElementType::kUndefined) const = 0;
};

}  // namespace graphopt
