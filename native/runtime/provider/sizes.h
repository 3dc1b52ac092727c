// Infers sizes of a region's values before a run, as text: dims with equal text are equal in every run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/abi/graph.h"

namespace graphopt::provider {

// The runtime infers integer dims and propagates the symbolic dims of model inputs. It does not know the output
// sizes of a convolution with symbolic input sizes. This class also infers such dims, for example for a
// residual branch whose convolutions keep the size of its input.
class Sizes {
 public:
  explicit Sizes(const std::vector<abi::GraphNode>& nodes);
  // Returns true if the first two inputs of a node are known to have equal shapes.
  bool have_equal_shapes(const abi::GraphNode& node) const;

 private:
  using Dims = std::vector<std::string>;
  // Empty if the sizes are unknown or the rank is 0.
  Dims input(const abi::GraphNode& node, size_t i) const;
  Dims output(const abi::GraphNode& node) const;

  std::map<std::string, Dims> inferred_;  // of node outputs in the region
};

}  // namespace graphopt::provider
