// Shape inference of one node, before any tensor exists.
#pragma once

#include <string>
#include <vector>

#include "operators/kernel.h"

namespace graphopt {

// A dim before any tensor exists: a value >= 0, a symbol, or neither (unknown).
struct Dim {
  int64_t value = -1;
  std::string symbol;

  bool known() const { return value >= 0; }
  bool unknown() const { return value < 0 && symbol.empty(); }
  friend bool operator==(const Dim& a, const Dim& b) {
    return !a.unknown() && a.value == b.value && a.symbol == b.symbol;
  }
};

// Empty if the rank is unknown. It never means a scalar, because no operator of com.graphopt has scalar inputs.
using SymbolicShape = std::vector<Dim>;

// Unknown shapes are not an error: they become known when the node runs.
class ShapeInference : public Attributes {
 public:
  virtual SymbolicShape input(size_t i) const = 0;
  // Sets nothing if the rank or a dim is unknown. The element type defaults to that of input 0.
  virtual void set_output(size_t i, const SymbolicShape& shape,
                          ElementType type = ElementType::kUndefined) const = 0;
};

}  // namespace graphopt
