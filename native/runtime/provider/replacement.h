// One node that replaces several nodes of a region.
#pragma once

#include <memory>
#include <vector>

#include "operators/node_in_graph.h"

namespace graphopt::provider {

struct Replacement {
  std::vector<size_t> nodes;          // indices of the replaced nodes; the last one writes the output
  std::unique_ptr<NodeInGraph> node;  // refers to `nodes`; may convert a constant when it is read
};

}  // namespace graphopt::provider
