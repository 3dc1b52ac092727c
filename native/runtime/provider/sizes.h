// What is known of the sizes of a region's values before a run: dims that have one text are equal in every run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/abi/graph.h"

namespace graphopt::provider {

// The runtime infers numbers and hands the names of a model's inputs on. Behind a convolution of a dim that is no
// number it knows nothing; here a branch that convolves, activates and comes back to the size of its input has its
// dims.
class Sizes {
 public:
  explicit Sizes(const std::vector<abi::GraphNode>& nodes);
  // Whether the first two inputs of a node have one shape.
  bool are_alike(const abi::GraphNode& node) const;

 private:
  using Dims = std::vector<std::string>;
  // Empty where the rank is not known, or 0.
  Dims input(const abi::GraphNode& node, size_t i) const;
  Dims output(const abi::GraphNode& node) const;

  std::map<std::string, Dims> made_;  // of what nodes of the region give
};

}  // namespace graphopt::provider
