// One node that replaces several nodes of a region.
#pragma once

#include <memory>
#include <vector>

#include "operators/node_in_graph.h"

namespace graphopt::provider {

struct Replacement {
  // Indices of the replaced nodes. The new node has the position of the last one.
  std::vector<size_t> nodes;
  std::unique_ptr<NodeInGraph> node;  // refers to the replaced nodes; may convert a constant when it is read
};

}  // namespace graphopt::provider
