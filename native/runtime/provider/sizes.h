// Infers sizes of a region's values before a run, as text: dims with equal text are equal in every run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/abi/graph.h"

namespace graphopt::provider {

// The runtime infers integer dims and propagates the symbolic dims of model inputs. The result of a
// convolution of a symbolic dim is unknown to it. This class also infers such dims, for example for a
// residual branch whose convolutions keep the size of its input.
class Sizes {
 public:
  explicit Sizes(const std::vector<abi::GraphNode>& nodes);
  // Returns true if the first two inputs of a node are known to have the same shape.
  bool are_alike(const abi::GraphNode& node) const;

 private:
  using Dims = std::vector<std::string>;
  // Empty if the rank is unknown or 0.
  Dims input(const abi::GraphNode& node, size_t i) const;
  Dims output(const abi::GraphNode& node) const;

  std::map<std::string, Dims> made_;  // of node outputs in the region
};

}  // namespace graphopt::provider
