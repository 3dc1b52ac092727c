// Finds nodes that one kernel computes together: they read the same tensor, differ only in constants of equal shapes, and
// have no attributes. Example: the layers that compute Q, K and V from one X.
#pragma once

#include <functional>
#include <vector>

#include "runtime/provider/region_graph.h"

namespace graphopt::provider {

// The indices of two or more sibling nodes, in order. `has_kernel`: whether a node's operator has a kernel for
// siblings. Siblings do not write outputs of the region.
using Siblings = std::vector<size_t>;
std::vector<Siblings> find_siblings(const RegionGraph& graph,
                                    const std::function<bool(const abi::GraphNode&)>& has_kernel);

}  // namespace graphopt::provider
