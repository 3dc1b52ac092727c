// Finds nodes that one kernel computes together: they read the same tensor and differ only in constants of equal
// shapes. Example: the layers that compute Q, K and V from one X.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/abi/graph.h"

namespace graphopt::provider {

// Indices of sibling nodes in order, two or more. `takes`: whether a node's operator has such a kernel. `outputs`: of
// the region; siblings do not write them.
using Siblings = std::vector<size_t>;
std::vector<Siblings> find_siblings(const std::vector<abi::GraphNode>& nodes,
                                    const std::vector<std::string>& outputs,
                                    const std::function<bool(const abi::GraphNode&)>& takes);

}  // namespace graphopt::provider
